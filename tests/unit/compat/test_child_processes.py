"""A Python that a script or a trial starts imports ``ray`` too, unless it has a Ray or no trialpod."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trialpod import variables
from trialpod.compat import ray
from trialpod.tune.shipping.package import import_path

SHOW = "import ray.tune, ray; from ray.air import session; print(ray.__version__, ray.tune.__name__)"
SPAWN = f"""
import subprocess, sys, trialpod
from trialpod.compat.ray import install
install(replace=True)
print(trialpod.__file__.partition("/trialpod/__init__")[0], flush=True)
subprocess.run([sys.executable, "-c", {SHOW!r}])
"""
ALIAS = "2.60.0+trialpod ray.tune\n"


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder that `install` puts on the path of children."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    ray.install(replace=True)
    folder = os.environ["PYTHONPATH"]
    ray.uninstall()
    return folder


@pytest.fixture
def real_ray(tmp_path: Path) -> str:
    package = tmp_path / "installed" / "ray"
    package.mkdir(parents=True)
    for name in ("__init__.py", "tune.py"):
        (package / name).write_text("__version__ = 'real'\n")
    (package / "air.py").write_text("session = None\n")
    return str(package.parent)


def python(*args: str, path: list[str], wanted: str = "ray") -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": os.pathsep.join(path), variables.COMPAT: wanted}
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=60, env={**os.environ, **given}
    )


class TestPath:
    def test_of_children_is_as_before_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/mine")
        before = list(sys.path)
        ray.install(replace=True)
        ray.install(replace=True)
        first, *others = os.environ["PYTHONPATH"].split(os.pathsep)
        assert (others, sys.path[1]) == (["/mine"], first)
        assert len(sys.path) == len(before) + 1
        assert first not in import_path()
        ray.uninstall()
        assert (os.environ["PYTHONPATH"], sys.path) == ("/mine", before)

    def test_is_set_again_where_a_trial_has_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        ray.install(replace=True)
        os.environ["PYTHONPATH"] = "/of/the/trial"
        ray.install(replace=True)
        assert os.environ["PYTHONPATH"].endswith(":/of/the/trial")
        ray.uninstall()
        assert os.environ.pop("PYTHONPATH") == "/of/the/trial"

    def test_is_not_taken_for_a_real_ray(self, shim: str) -> None:
        code = "from trialpod.compat.ray import install; install(); import ray; print(ray.__version__)"
        assert python("-c", code, path=[shim]).stdout == "2.60.0+trialpod\n"


class TestImport:
    def test_finds_the_alias_with_its_modules(self, shim: str) -> None:
        assert python("-c", SHOW, path=[shim]).stdout == ALIAS

    def test_finds_it_in_a_zip_file(self, tmp_path: Path) -> None:
        """As pods bring trialpod into images that have none."""
        package = Path(ray.__file__).parents[2]
        with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
            for file in package.rglob("*"):
                if file.suffix in (".py", ".txt"):
                    archive.write(file, file.relative_to(package.parent))
        done = python("-c", SPAWN, path=[str(tmp_path / "code.zip")])
        assert done.stdout == f"{tmp_path}/code.zip\n{ALIAS}"

    def test_finds_a_ray_of_that_python_unless_hidden(self, shim: str, real_ray: str) -> None:
        assert python("-c", SHOW, path=[shim, real_ray]).stdout == "real ray.tune\n"
        assert python("-c", SHOW, path=[shim, real_ray], wanted="ray!").stdout == ALIAS

    def test_is_as_without_it_where_trialpod_is_missing(self, shim: str, real_ray: str) -> None:
        assert python("-S", "-c", SHOW, path=[shim, real_ray]).stdout == "real ray.tune\n"
        assert "No module named 'ray'" in python("-S", "-c", SHOW, path=[shim]).stderr.splitlines()[-1]
