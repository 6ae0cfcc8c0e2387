"""The Python of an image: found, looked at, and given what it lacks."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trialpod import variables
from trialpod.runner.command.program_file import this_machine
from trialpod.runner.image_python import DECIDER, UNFIT, UnfitPythonError, main, plan

POD = "trialpod.runner.pod"
SUFFIXES = {"glibc": ".cpython-313-x86_64-linux-gnu.so", "musl": ".cpython-313-x86_64-linux-musl.so"}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume with the folders of two Pythons."""
    for version in ("cp311", "cp313"):
        for library in ("glibc", "musl"):
            (tmp_path / f"volume/packages/{version}-{library}").mkdir(parents=True)
    return tmp_path / "volume"


def image(folder: Path, name: str = "python3", **found: Any) -> dict[str, str]:
    """Return the environment of an image whose Python is like this."""
    said = {
        "version": [3, 13, 1],
        "implementation": "cpython",
        "suffix": SUFFIXES["glibc"],
        "names": {},
        **found,
    }
    folder = folder / "image/bin"
    folder.mkdir(parents=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho noise; echo '{json.dumps(said)}'\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}


class TestWhatItGets:
    def test_an_image_with_trialpod_gets_nothing(self, tmp_path: Path, volume: Path) -> None:
        environ = image(tmp_path, names={"trialpod": "0.1.0", "msgspec": "0.22.0"})
        command, found = plan(POD, volume, environ)
        assert command == [f"{tmp_path}/image/bin/python3", "-m", POD]
        assert found == environ

    def test_a_folder_of_that_name_is_no_trialpod(
        self, tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trial's work folder is /trialpod, and most containers start in /."""
        (tmp_path / "trialpod").mkdir()
        (tmp_path / "bin").mkdir()
        python = tmp_path / "bin/python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        mine = volume / f"packages/cp{sys.version_info[0]}{sys.version_info[1]}-glibc"
        mine.mkdir(exist_ok=True)
        _, found = plan(POD, volume, {"PATH": f"{tmp_path}/bin"})
        assert found["PYTHONPATH"] == f"{volume}/code.zip"

    @pytest.mark.parametrize("library", ["glibc", "musl"])
    def test_one_without_gets_the_packages_of_its_python(self, library: str, tmp_path: Path, volume: Path) -> None:
        environ = {**image(tmp_path, suffix=SUFFIXES[library]), "PYTHONPATH": "/app"}
        _, found = plan(POD, volume, environ)
        packages = volume / "packages"
        assert found["PYTHONPATH"] == f"{volume}/code.zip:/app"
        names = (f"cp313-{library}", library, "common.zip", "common")
        assert found[variables.PACKAGES] == ":".join(f"{packages}/{name}" for name in names)

    def test_musl_is_known_where_the_suffix_is_that_of_glibc(self, tmp_path: Path, volume: Path) -> None:
        """As Python 3.10 of Alpine says it."""
        _, found = plan(POD, volume, image(tmp_path, glibc=None))
        assert f"{volume}/packages/cp313-musl" in found[variables.PACKAGES]

    def test_packages_that_are_too_old_come_second(self, tmp_path: Path, volume: Path) -> None:
        environ = image(tmp_path, names={"msgspec": "0.18.6", "minio": "7.2.20"})
        _, found = plan(POD, volume, environ)
        assert found["PYTHONPATH"] == f"{volume}/code.zip:{volume}/packages/cp313-glibc"

    def test_packages_of_the_image_go_first(self, tmp_path: Path) -> None:
        """As the started Python sees it: what it has is found before what the volume has."""
        for place in ("own", "brought"):
            (tmp_path / place).mkdir()
            (tmp_path / place / "which_one.py").write_text(f"name = {place!r}\n")
        (tmp_path / "brought/only_brought.py").write_text("")
        script = f"import sys; sys.path.append({str(tmp_path / 'own')!r})\n"
        script += "import trialpod, which_one, only_brought; print(which_one.name)"
        environ = {**os.environ, variables.PACKAGES: str(tmp_path / "brought")}
        done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "own\n"


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (
                {"version": [3, 9, 2]},
                "Python 3.9.2, which has reached its end of life; a Trainable runs on 3.11",
            ),
            ({"version": [3, 15, 0]}, "Python 3.15.0, which is newer than the operator's image"),
            ({"version": [2, 7, 18], "implementation": None}, "2.7.18, a Trainable runs on CPython 3.11 to 3.13"),
            ({"implementation": "pypy"}, "the image has pypy 3.13.1"),
            ({"suffix": ".cpython-313t-x86_64-linux-gnu.so"}, "free-threaded"),
        ],
    )
    def test_it_is_named_with_the_remedy(
        self, found: dict[str, Any], words: str, tmp_path: Path, volume: Path
    ) -> None:
        found = {key: value for key, value in found.items() if value}
        with pytest.raises(UnfitPythonError) as caught:
            plan(POD, volume, image(tmp_path, **found))
        assert words in str(caught.value)
        assert "spec.trainable.command" in str(caught.value)

    def test_no_python_at_all(self, tmp_path: Path, volume: Path) -> None:
        with pytest.raises(UnfitPythonError, match=r"no python or python3 on its PATH .*spec\.trainable\.command"):
            plan(POD, volume, {"PATH": str(tmp_path)})
        with pytest.raises(UnfitPythonError, match=r"deciding code.*spec\.decider\.image"):
            plan(DECIDER, volume, {"PATH": str(tmp_path)})

    def test_one_of_another_architecture(self, tmp_path: Path, volume: Path) -> None:
        environ = image(tmp_path)
        number, name = (62, "amd64") if this_machine() == "arm64" else (183, "arm64")
        (tmp_path / "image/bin/python3").write_bytes(
            b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, number) + bytes(44)
        )
        with pytest.raises(UnfitPythonError, match=rf"built for {name}, and this node is .*kubernetes\.io/arch"):
            plan(POD, volume, environ)

    def test_one_that_does_not_run(self, tmp_path: Path, volume: Path) -> None:
        environ = image(tmp_path)
        (tmp_path / "image/bin/python3").write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(UnfitPythonError, match="does not run"):
            plan(POD, volume, environ)

    def test_the_container_ends_with_its_own_status(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = tmp_path / "log"
        log.write_text("")
        monkeypatch.setenv(variables.TERMINATION_LOG, str(log))
        monkeypatch.setenv("PATH", str(tmp_path))
        assert main([POD]) == UNFIT
        assert log.read_text().startswith("the image has no python")
