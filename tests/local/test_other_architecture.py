"""The runtime on arm64, which qemu emulates: the packages that pods bring there, and a command that is read.

`make test-addons` fetches that Python; the emulator and its C library are Debian's.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".cache/pythons/cpython-3.11.11-20241219-1-arm64/bin/python3.11"
LIBRARIES = Path(os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"))
QEMU = shutil.which("qemu-aarch64-static")
AARCH64 = 0xB7  # in the header of an ELF file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        QEMU is None or not LIBRARIES.exists() or not PYTHON.exists() or platform.machine() != "x86_64",
        reason="needs qemu-user-static, libc6-arm64-cross, and tools/cluster/command python python3.11-arm64",
    ),
]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a pod of arm64 has as its volume, but for the portable Python."""
    made = tmp_path_factory.mktemp("volume")
    tool = ROOT / "tools/make_runtime_packages"
    subprocess.run([sys.executable, tool, made, ROOT / "requirements/image.txt", "aarch64"], check=True)
    return made


@pytest.fixture(scope="module")
def python(volume: Path) -> Path:
    """Return an emulated Python, as one program, that has the volume as in a pod."""
    folders = (f"{volume}/packages/{name}" for name in ("cp311-glibc", "glibc", "common.zip", "common"))
    program = volume / "python"
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={volume}/code.zip TRIALPOD_PACKAGES={':'.join(folders)} "
        f'exec {QEMU} -L {LIBRARIES} {PYTHON} "$@"\n'
    )
    program.chmod(0o755)
    return program


def run(python: Path, code: str) -> str:
    """Return what code prints there."""
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(
        [python, "-c", code], env=environ, cwd="/", capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestPackages:
    def test_all_machine_code_is_of_that_architecture(self, volume: Path) -> None:
        found = list(volume.rglob("*.so*"))
        assert found
        assert {int.from_bytes(file.read_bytes()[18:20], "little") for file in found} == {AARCH64}

    def test_what_runs_a_trial_is_imported(self, volume: Path, python: Path) -> None:
        code = (
            "import platform, trialpod.runner.pod, trialpod_operator.decider\n"
            "from trialpod import tune\n"
            "import msgspec, minio\n"
            f"print(platform.machine(), trialpod.__file__.startswith('{volume}/code.zip/'))\n"
            "print(msgspec.json.encode({'loss': 0.5}).decode())\n"
        )
        assert run(python, code) == 'aarch64 True\n{"loss":0.5}\n'


class TestCommand:
    def test_its_output_is_read(self, python: Path) -> None:
        """With its guard, another process of this Python, and its group."""
        code = f"""
import os, sys
from trialpod.protocol.command import MetricsSpec
from trialpod.runner.command.process import CommandProcess
from trialpod.tune.command.metrics.reader import LineReader

sys.executable = {str(python)!r}
program = CommandProcess(["/bin/sh", "-c", "echo step 4: loss=0.25; exit 3"], dict(os.environ), "/")
line = program.streams[0].readline().decode()
print(LineReader(MetricsSpec()).read(line), program.wait(60), os.uname().machine)
"""
        assert run(python, code) == "{'loss': 0.25} 3 aarch64\n"
