"""What is said of a program that this machine cannot start."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from trialpod.runner.command.process import CommandNotFoundError, CommandProcess
from trialpod.runner.command.program_file import loader_of, machine_of, this_machine

ARM64, AMD64 = 183, 62


def program(folder: Path, machine: int, loader: bytes = b"") -> Path:
    """Write the head of a program of 64 bits."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1 if loader else 0, 0, 0, 0)
    entry = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader) + 1, len(loader) + 1, 1) if loader else b""
    file = folder / "program"
    file.write_bytes(head + entry + loader + b"\0")
    file.chmod(0o755)
    return file


def why(file: Path) -> str:
    with pytest.raises(CommandNotFoundError) as caught:
        CommandProcess([str(file)], dict(os.environ), str(file.parent))
    return str(caught.value)


class TestProgramsOfAnotherKind:
    def test_another_architecture_is_named_with_both(self, tmp_path: Path) -> None:
        other, name = (ARM64, "arm64") if this_machine() != "arm64" else (AMD64, "amd64")
        text = why(program(tmp_path, other))
        assert f"built for {name}, and this machine is {this_machine()}" in text
        assert "kubernetes.io/arch" in text

    def test_a_missing_loader_is_named(self, tmp_path: Path) -> None:
        here = ARM64 if this_machine() == "arm64" else AMD64
        text = why(program(tmp_path, here, b"/lib/ld-no-such.so.1"))
        assert "needs the loader /lib/ld-no-such.so.1" in text
        assert "musl" in text

    def test_a_real_program_says_what_it_is_for(self, tmp_path: Path) -> None:
        assert machine_of(os.path.realpath(sys.executable)) == this_machine()
        text = tmp_path / "text"
        text.write_text("#!/bin/sh\n")
        assert (machine_of(str(text)), loader_of(str(text))) == ("", "")
