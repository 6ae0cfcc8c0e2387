"""From bytes to lines, in bounded memory.

A line ends with a line feed or a carriage return, as progress bars write them. Of a longer one than `MAX_LINE_BYTES`
only the beginning is kept. Bytes that are not UTF-8 become replacement characters, NUL bytes vanish, and so do byte
order marks and the escape sequences of terminals: names and numbers in ASCII are found in any encoding that extends
it, and in UTF-16.
"""

from __future__ import annotations

import codecs
import re

MAX_LINE_BYTES = 64 * 1024

_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_END = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class LineSplitter:
    """Splits one stream; `max_bytes` bounds a line and the memory."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_bytes
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, without those that are empty."""
        *complete, last = _END.split(data)
        lines = []
        for piece in complete:
            self._keep(piece)
            if text := self.finish():
                lines.append(text)
        self._keep(last)
        return lines

    def finish(self) -> str:
        """Return what has no end yet, and forget it."""
        text = decode(bytes(self._partial))
        self._partial.clear()
        return text

    def _keep(self, piece: bytes) -> None:
        room = self._max - len(self._partial)
        if room > 0:
            self._partial += piece[:room]


def decode(line: bytes, strip: str | None = None) -> str:
    """Return the text of a line as the readers of metrics take it, stripped of these characters (None: all blank)."""
    if b"\0" in line:
        line = line.replace(b"\0", b"")
        if line.startswith(_UTF_16_MARKS):
            line = line[2:]
    text = line.decode("utf-8", "replace").removeprefix("\ufeff")
    return (_ESCAPE.sub("", text) if "\x1b" in text else text).strip(strip)
