"""A free port for what a test starts: a server that is given its port, or comes back on it."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a port that nothing listens on now, below those that the kernel gives to clients.

    A client that tries again and again to reach a port of those, while the server is down, at some time connects to
    itself, and the server can never have its port again.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
