"""How the journal's bytes are laid out, and the test of a segment's bytes.

A segment is a header (magic, format version, number of its first record, CRC-32 of these) and frames. A frame is the
record's length, the low 32 bits of its number and a CRC-32 over both and the record, then the record. The number in
every frame lets `scan` tell a torn end from damage in the middle: damage has a good frame with a later number
somewhere behind it.

A snapshot is a header (magic, format version, number of records it stands for, length and CRC-32 of its data).
"""

from __future__ import annotations

import struct
import zlib

from trialpod.errors import JournalError, format_mismatch

FORMAT_VERSION = 1
MAX_RECORD_BYTES = 1 << 30

FRAME = struct.Struct("<III")
_SEGMENT = struct.Struct("<8sIQ")
_SNAPSHOT = struct.Struct("<8sIQQI")
_CHECK = struct.Struct("<I")
_SEGMENT_MAGIC = b"TPODJRNL"
_SNAPSHOT_MAGIC = b"TPODSNAP"
_MASK = 0xFFFFFFFF

SEGMENT_HEADER_BYTES = _SEGMENT.size + _CHECK.size


class OtherFormatError(JournalError):
    """A file was written by another version of trialpod: no other file can be read instead of it."""


def encode_segment_header(first: int) -> bytes:
    """Return the header of a segment whose first record has this number."""
    head = _SEGMENT.pack(_SEGMENT_MAGIC, FORMAT_VERSION, first)
    return head + _CHECK.pack(zlib.crc32(head))


def read_segment_header(data: bytes, path: str) -> tuple[int, int]:
    """Return (number of the first record, offset of the first frame); raise JournalError if this is not a segment."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise JournalError(_damaged(path, len(data), "the file ends inside its header"))
    magic, version, first = _SEGMENT.unpack_from(data)
    _check_header(path, magic, _SEGMENT_MAGIC, data, _SEGMENT.size)
    _check_version(path, version)
    return first, SEGMENT_HEADER_BYTES


def encode_snapshot(data: bytes, records: int) -> bytes:
    """Return the content of a snapshot file that stands for the first `records` records."""
    head = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, FORMAT_VERSION, records, len(data), zlib.crc32(data))
    return head + _CHECK.pack(zlib.crc32(head)) + data


def decode_snapshot(content: bytes, path: str) -> tuple[bytes, int]:
    """Return (data, number of records it stands for); raise JournalError if it is damaged."""
    start = _SNAPSHOT.size + _CHECK.size
    if len(content) < start:
        raise JournalError(_damaged(path, len(content), "the file ends inside its header"))
    magic, version, records, length, check = _SNAPSHOT.unpack_from(content)
    _check_header(path, magic, _SNAPSHOT_MAGIC, content, _SNAPSHOT.size)
    _check_version(path, version)
    data = content[start:]
    if len(data) != length or zlib.crc32(data) != check:
        raise JournalError(_damaged(path, start, "the checksum of the snapshot does not match"))
    return data, records


def frame_check(length: int, low: int, record: bytes | memoryview) -> int:
    """Return the checksum of a frame."""
    return zlib.crc32(record, low ^ length)


def scan(data: bytes, at: int, position: int, path: str, *, last: bool) -> tuple[int, int]:
    """Check all frames from offset `at` on.

    Args:
        data: the segment's bytes.
        at: offset of the first frame.
        position: number of the record before it.
        path: the segment's file, for messages.
        last: whether a torn end is allowed.

    Returns:
        (number of the last good record, offset behind it)

    Raises:
        JournalError: a bad frame that is not just a torn end.
    """
    view = memoryview(data)
    size = len(data)
    while at < size:
        end = _good_frame(view, at, (position + 1) & _MASK)
        if end == 0:
            later = _later_frame(view, at, position + 1) if last else at
            if later:
                problem = _damaged(path, at, f"record {position + 1} is broken")
                if last:
                    problem += (
                        f". There is a later whole record at byte {later}; to give up what follows byte {at} "
                        f"nevertheless, keep a copy of the file and run: truncate -s {at} {path}"
                    )
                raise JournalError(problem)
            break
        at = end
        position += 1
    return position, at


def _good_frame(view: memoryview, at: int, low: int) -> int:
    start = at + FRAME.size
    if start > len(view):
        return 0
    length, number, check = FRAME.unpack_from(view, at)
    end: int = start + length
    if number != low or end > len(view) or frame_check(length, number, view[start:end]) != check:
        return 0
    return end


def _later_frame(view: memoryview, at: int, broken: int) -> int:
    """Return the offset of a good frame behind a broken one, 0 if there is none."""
    size = len(view)
    most = (size - at) // FRAME.size
    for offset in range(at + 1, size - FRAME.size + 1):
        length, number, check = FRAME.unpack_from(view, offset)
        start = offset + FRAME.size
        if (
            0 < (number - broken) & _MASK <= most
            and start + length <= size
            and frame_check(length, number, view[start : start + length]) == check
        ):
            return offset
    return 0


def _check_header(path: str, magic: bytes, expected: bytes, data: bytes, size: int) -> None:
    if magic != expected:
        raise JournalError(_damaged(path, 0, "it does not begin as a journal file does"))
    # Before the version is looked at: a damaged one must not make a user look for a newer trialpod.
    if zlib.crc32(data[:size]) != _CHECK.unpack_from(data, size)[0]:
        raise JournalError(_damaged(path, 0, "the checksum of the header does not match"))


def _check_version(path: str, version: int) -> None:
    mismatch = format_mismatch(path, version, FORMAT_VERSION)
    if mismatch is not None:
        raise OtherFormatError(mismatch)


def _damaged(path: str, offset: int, what: str) -> str:
    return f"{path} is damaged at byte {offset}: {what}. Put the file back from a copy of the experiment"
