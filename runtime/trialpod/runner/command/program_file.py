"""What a program's file says of where it can run: read from its ELF header, when the system refuses to start it."""

from __future__ import annotations

import platform
import struct

_MACHINES = {3: "386", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}
_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
_LOADER = 3
_MAX_HEADERS = 64


def this_machine() -> str:
    """Return the architecture of this machine, as images name it."""
    return _NAMES.get(platform.machine(), platform.machine())


def machine_of(path: str) -> str:
    """Return the architecture that a program is built for, "" if that is not to be seen."""
    head = _read(path, 0, 20)
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return ""
    (number,) = struct.unpack(_order(head) + "H", head[18:20])
    return _MACHINES.get(number, f"machine {number}")


def loader_of(path: str) -> str:
    """Return the loader that a dynamically linked program of 64 bits asks for, "" for any other file."""
    head = _read(path, 0, 64)
    if len(head) < 64 or not head.startswith(b"\x7fELF\x02"):
        return ""
    order = _order(head)
    (start,) = struct.unpack(order + "Q", head[32:40])
    size, count = struct.unpack(order + "HH", head[54:58])
    for index in range(min(count, _MAX_HEADERS)):
        entry = _read(path, start + index * size, 56)
        if len(entry) < 56:
            return ""
        if struct.unpack(order + "I", entry[:4])[0] == _LOADER:
            offset, length = struct.unpack(order + "Q", entry[8:16])[0], struct.unpack(order + "Q", entry[32:40])[0]
            return _read(path, offset, min(length, 4096)).rstrip(b"\0").decode("utf-8", "replace")
    return ""


def _order(head: bytes) -> str:
    return ">" if head[5] == 2 else "<"


def _read(path: str, offset: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError:
        return b""
