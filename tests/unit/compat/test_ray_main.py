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
        assert lines[1].startswith('  File "script.py", line 6')
        assert lines[-1] == "ValueError: ['script.py', 'a']"
        assert "runpy" not in done.stderr

    def test_of_syntax_and_exit_codes(self, tmp_path: Path) -> None:
        assert "SyntaxError" in run(tmp_path, "def f(:\n").stderr
        assert run(tmp_path, "raise SystemExit(3)").returncode == 3
        assert run(tmp_path, "raise KeyboardInterrupt").returncode == 130
        assert run(tmp_path, "").returncode == 0
