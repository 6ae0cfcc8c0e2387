"""The TLS handshake of one client, before it becomes a connection of the report server.

asyncio's own TLS servers keep one context for as long as they listen, and no code of ours sees a client before its
handshake is over. Here the context is asked for with each client, so a renewed certificate needs no restart, and a
client counts from its first packet on.

Invariants: a handshake ends in a connection, or in nothing, within `Limits.handshake_s`; what a client sent together
with the end of its handshake is not lost.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Protocol

from trialpod_operator.reports.connection import Connection, ConnectionOwner

logger = logging.getLogger(__name__)

BUFFER_BYTES = 8 * 1024
"""What each connection reads into. With asyncio's own 256 KiB it would be most of the memory of thousands.

With 32 KiB a connection takes 59 kB and a request of 800 bytes 0.17 ms of CPU, with 8 KiB 33 kB and 0.14 ms; one of
1 MB takes 2.6 ms instead of 1.0 (measured 2026-11-26, Python 3.11)."""


class HandshakeOwner(ConnectionOwner, Protocol):
    """What a handshake needs of its server."""

    def admit_handshake(self, handshake: Handshake) -> bool:
        """Count a client whose handshake begins; False when there are too many."""

    def forget_handshake(self, handshake: Handshake) -> None:
        """Drop a client whose handshake has ended."""


class Handshake(asyncio.Protocol):
    """One client until it speaks HTTP.

    Args:
        server: what it wants to talk to.
        context: gives the TLS context to use now.
    """

    def __init__(self, server: HandshakeOwner, context: Callable[[], ssl.SSLContext]) -> None:
        self._server = server
        self._context = context
        self._received: list[bytes] = []
        self._lost = False
        self._forgotten = False
        self.task: asyncio.Task[None] | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or turn the client away when there are too many."""
        if self.task is not None:
            return
        assert isinstance(transport, asyncio.Transport)
        # Nothing may be read before the TLS layer is in place.
        transport.pause_reading()
        self.address = address_of(transport)
        if not self._server.admit_handshake(self):
            transport.abort()
            return
        self.task = asyncio.ensure_future(self._shake(transport))
        self.task.add_done_callback(self._done)

    def data_received(self, data: bytes) -> None:
        """Keep what came before the connection was there to take it."""
        self._received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away."""
        self._lost = True

    async def _shake(self, transport: asyncio.Transport) -> None:
        limits = self._server.limits
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=limits.handshake_s,
                ssl_shutdown_timeout=limits.linger_s,
            )
        except (OSError, TimeoutError) as error:
            # Port scanners and clients that do not trust the certificate: routine, and theirs to tell.
            logger.debug("no TLS handshake with %s: %s", self.address, error)
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        if secured is None or self._lost:
            transport.abort()
            return
        self._forget()
        connection = Connection(self._server)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if self._received:
            connection.data_received(b"".join(self._received))

    def _forget(self) -> None:
        if not self._forgotten:
            self._forgotten = True
            self._server.forget_handshake(self)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._forget()
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a TLS handshake failed", exc_info=problem)


def small_buffers() -> None:
    """Have the TLS connections that asyncio makes from now on, in this process, use buffers of `BUFFER_BYTES`."""
    sslproto.SSLProtocol.max_size = BUFFER_BYTES


def address_of(transport: asyncio.Transport) -> str:
    """Return the client's IP address, or "unix"."""
    peername = transport.get_extra_info("peername")
    return str(peername[0]) if isinstance(peername, tuple) else "unix"
