"""``python -m trialpod.compat.ray SCRIPT`` behaves as ``python SCRIPT`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "trialpod.compat.ray", "--replace", "script.py", "a"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


class TestErrors:
    def test_tracebacks_begin_with_the_script(self, tmp_path: Path) -> None:
        done = run(tmp_path, "import sys\nprint('first')\ndef f():\n    raise ValueError(sys.argv)\n\nf()\n")
        assert done.returncode == 1
        assert done.stdout == "first\n"
        lines = done.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1].startswith(f'  File "{tmp_path}/script.py", line 6')
        assert lines[-1] == "ValueError: ['script.py', 'a']"
        assert "runpy" not in done.stderr

    def test_of_syntax_and_exit_codes(self, tmp_path: Path) -> None:
        assert "SyntaxError" in run(tmp_path, "def f(:\n").stderr
        assert run(tmp_path, "raise SystemExit(3)").returncode == 3
        assert run(tmp_path, "raise KeyboardInterrupt").returncode == 130
        assert run(tmp_path, "").returncode == 0


class TestModules:
    def test_run_as_python_runs_them(self, tmp_path: Path) -> None:
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "helper.py").write_text("def f():\n    raise ValueError('of helper')\n")
        (package / "tuned.py").write_text(
            "import sys\nfrom ray import tune\nfrom package.helper import f\n"
            "print(__name__, __package__, tune.__name__, *sys.argv[1:], sys.path[0] in ('', sys.argv[1]))\nf()\n"
        )
        (package / "__main__.py").write_text("print('all of it')\n")
        done = run_module(tmp_path, "package.tuned", str(tmp_path), "-m")
        assert done.returncode == 1
        assert done.stdout == f"__main__ package ray.tune {tmp_path} -m True\n"
        lines = done.stderr.splitlines()
        assert lines[:2] == [
            "Traceback (most recent call last):",
            f'  File "{package}/tuned.py", line 5, in <module>',
        ]
        assert lines[-1] == "ValueError: of helper"
        assert run_module(tmp_path, "package").stdout == "all of it\n"

    def test_that_do_not_exist_are_named(self, tmp_path: Path) -> None:
        for name in ("missing", "missing.part"):
            done = run_module(tmp_path, name)
            assert done.returncode == 2
            assert f"there is no module {name} that can be run" in done.stderr


def run_module(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trialpod.compat.ray", "--replace", "-m", *args],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
