from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trialpod.cli import program


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called trialpod in a folder with a space, which is the working directory's."""
    path = tmp_path / "my venv" / "trialpod"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "_invoked", "")
    return path


class TestProgram:
    def test_is_the_name_when_the_shell_finds_it(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(installed.parent))
        monkeypatch.setattr(sys, "argv", [str(installed), "run"])
        program.remember()
        assert program.program() == "trialpod"

    def test_is_the_path_as_typed_when_it_does_not(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(sys, "argv", ["my venv/trialpod", "run"])
        program.remember()
        monkeypatch.setattr(sys, "argv", ["script.py"])
        assert program.program() == "'my venv/trialpod'"

    @pytest.mark.parametrize("invoked", ["", "-c", "/usr/bin/pytest", "/nowhere/trialpod"])
    def test_of_another_program_is_the_name(self, invoked: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", [invoked])
        program.remember()
        assert program.program() == "trialpod"
