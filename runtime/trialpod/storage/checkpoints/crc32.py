"""The CRC-32 of a whole from those of its parts, which were computed side by side.

Appending n bytes multiplies the checksum, as a polynomial over GF(2), by x^(8n) modulo CRC-32's polynomial; the
checksum of the whole is then the sum of that and the second part's (the method of zlib's ``crc32_combine``).
"""

from __future__ import annotations

_POLYNOMIAL = 0xEDB88320  # bit-reversed: the coefficient of x^0 is the highest bit


def combine(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two byte strings one after the other.

    Args:
        first: checksum of the first.
        second: checksum of the second.
        length: bytes of the second.
    """
    return _times(_power(8 * length), first) ^ second


def _times(left: int, right: int) -> int:
    product = 0
    while left:
        if left & 0x80000000:
            product ^= right
        left = (left << 1) & 0xFFFFFFFF
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
    return product


def _power(exponent: int) -> int:
    """Return x^exponent."""
    result, square = 0x80000000, 0x40000000  # 1 and x
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result
