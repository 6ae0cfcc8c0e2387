"""The zip files that pods copy: what is moved into them, and that it is imported from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePath
from types import ModuleType

import pytest

import file_module

pytestmark = pytest.mark.once

TOOL = Path(__file__).parents[2] / "tools/runtime_packing.py"


@pytest.fixture(scope="module")
def packing() -> ModuleType:
    """Return the tools' module, which is not on the path."""
    return file_module.load(TOOL, "runtime_packing")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of sys.path with a module, a package, and one that has a file of another kind."""
    made = tmp_path / "packages"
    for name in ("pure/inner", "mixed"):
        (made / name).mkdir(parents=True)
    (made / "single.py").write_text("NAME = 'single'\n")
    (made / "pure/__init__.py").write_text("")
    (made / "pure/py.typed").write_text("")
    (made / "pure/inner/__init__.py").write_text("def fail():\n    raise ValueError('here')\n")
    (made / "mixed/__init__.py").write_text("")
    (made / "mixed/data.pem").write_text("data")
    return made


def traceback_of(path: Path) -> str:
    """Return what the failure of the packed function prints, as another process without `site` sees it."""
    script = f"""
import sys, traceback
sys.path.insert(0, {str(path)!r})
import single, pure.inner
try:
    pure.inner.fail()
except ValueError:
    traceback.print_exc()
"""
    return subprocess.run([sys.executable, "-IS", "-c", script], capture_output=True, text=True, check=False).stderr


class TestPacking:
    def test_pure_packages_move_and_others_stay(self, packing: ModuleType, folder: Path, tmp_path: Path) -> None:
        packing.pack(folder, tmp_path / "made.zip", tmp_path / "made.zip")
        assert [each.name for each in folder.iterdir()] == ["mixed"]
        shown = traceback_of(tmp_path / "made.zip")
        assert f'File "{tmp_path}/made.zip/pure/inner/__init__.py", line 2, in fail' in shown
        assert "raise ValueError" not in shown, "it has no sources"

    def test_sources_show_in_tracebacks(self, packing: ModuleType, folder: Path, tmp_path: Path) -> None:
        packing.pack(folder, tmp_path / "made.zip", Path("/elsewhere/made.zip"), sources=lambda _: True)
        shown = traceback_of(tmp_path / "made.zip")
        assert 'File "/elsewhere/made.zip/pure/inner/__init__.py", line 2, in fail' in shown
        assert "raise ValueError('here')" in shown

    def test_the_same_files_make_the_same_archive(self, packing: ModuleType, folder: Path, tmp_path: Path) -> None:
        archives = []
        for name in ("one", "two"):
            copied = tmp_path / name
            subprocess.run(["cp", "-R", folder, copied], check=True)
            packing.pack(copied, tmp_path / f"{name}.zip", Path("/place.zip"), sources=lambda _: True)
            archives.append((tmp_path / f"{name}.zip").read_bytes())
        assert archives[0] == archives[1]


class TestWhatIsNeeded:
    @pytest.mark.parametrize(
        ("file", "needed"),
        [
            ("minio/api.py", True),
            ("minio-7.2.20.dist-info/METADATA", False),
            ("cffi/api.py", False),
            ("cffi", False),
            ("_cffi_backend.cpython-311-x86_64-linux-gnu.so", True),
            ("Crypto/Cipher/AES.py", True),
            ("Crypto/Cipher/_raw_ctr.abi3.so", True),
            ("Crypto/Cipher/_raw_des3.abi3.so", False),
            ("Crypto/PublicKey/RSA.py", False),
            ("urllib3/contrib/emscripten/fetch.py", False),
            ("msgspec/tests/test_json.py", False),
            ("msgspec/_core.pyi", False),
        ],
    )
    def test_files_of_wheels(self, packing: ModuleType, file: str, needed: bool) -> None:
        assert packing.is_needed(PurePath(file)) is needed
