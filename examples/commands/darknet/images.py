"""Writes small images of two kinds beside this script: even ones plain, odd ones with stripes."""

import random
import struct
import zlib
from pathlib import Path

SIZE = 16
FOLDER = Path(__file__).parent


def png(pixels: list[list[int]]) -> bytes:
    """Return a grey image as PNG."""
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(value for pixel in row for value in (pixel,) * 3) for row in pixels)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(data)) + name + data + _checksum(name + data) for name, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


rng = random.Random(0)
for number in range(40):
    kind = number % 2
    pixels = [
        [max(0, min(255, (200 if kind and x % 4 < 2 else 90) + rng.randint(-90, 90))) for x in range(SIZE)]
        for _ in range(SIZE)
    ]
    (FOLDER / f"{number}_{('plain', 'stripe')[kind]}.png").write_bytes(png(pixels))
