"""The token that a pod proves its identity with: a file that the kubelet replaces long before the token expires.

Invariants: the file is checked before each request and read only when it has changed; a token never appears in a
message; what is in the file can never become a second header.
"""

from __future__ import annotations

import os

from trialpod.protocol.http import TransportError


class BearerToken:
    """Gives the value of the Authorization header.

    Args:
        path: the file with the token.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._value = ""
        self._version: tuple[int, int, int] | None = None

    def __call__(self) -> str:
        """Return ``Bearer <token>``.

        Raises:
            TransportError: the file cannot be read, or holds no token; it may be there the next time.
        """
        try:
            found = os.stat(self.path)
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._version:
                self._value = self._read()
                self._version = version
        except OSError as error:
            # The one that was read last may well be valid still.
            if not self._value:
                raise TransportError(f"the token of this pod cannot be read: {error}") from error
        return self._value

    def refused(self) -> None:
        """Read the file again for the next request, even if it looks unchanged."""
        self._version = None

    def _read(self) -> str:
        with open(self.path, "rb") as stream:
            token = stream.read().strip()
        if not token or not all(0x21 <= byte <= 0x7E for byte in token):
            raise TransportError(
                f"{self.path} holds no token; it has to be the file of a projected serviceAccountToken volume"
            )
        return f"Bearer {token.decode('ascii')}"
