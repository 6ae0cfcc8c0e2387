"""A small, strict HTTP/1.1 server for the report path: POST in, MessagePack out, nothing else.

Own code instead of a web framework, because every report of every trial passes here. CPU per request on a Unix
socket, best of six runs side by side (benchmarks/http_libraries.py): this server 17 us, uvicorn with httptools 35 us,
aiohttp.web 45 us. Neither library can send an interim answer (102) while a handler waits, limit the bytes that all
clients together have in flight, or end a client that neither sends nor reads.

Invariants:

* A handler that returns a plain tuple is answered within the same read, without a task. One that returns an awaitable
  (a long poll) is cancelled when its client goes away.
* Every refusal has an `ErrorAnswer` as its body.
* A socket file is never open to other users, and is removed by the server that made it only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from trialpod.errors import InvalidInputError
from trialpod_operator.reports.connection import (
    CONNECTIONS,
    AddressUse,
    Answer,
    Connection,
    Handler,
    Limits,
    Peer,
    error,
)
from trialpod_operator.reports.tls import Handshake, small_buffers

if TYPE_CHECKING:
    import ssl as ssl_module

logger = logging.getLogger(__name__)

__all__ = ["CONNECTIONS", "Answer", "Handler", "Limits", "Peer", "ReportServer", "error"]

_MAX_UNIX_PATH = 107

BACKLOG = 4096
"""Clients that wait to be accepted; the kernel may allow fewer (`net.core.somaxconn`)."""

REFUSAL_LOG_INTERVAL_S = 60.0
"""Refused clients come back every few seconds: the log has one line for all of such a time."""


class ReportServer:
    """Serves one handler on any number of sockets.

    Args:
        handler: called as ``handler(path, body, peer)`` for each POST below ``/v1/``; returns ``(status, body)``, or
            an awaitable of it. An exception is logged and answered with 500.
        limits: what one client may take.
        needs_authorization: a request without an Authorization header is refused before its body comes.
    """

    def __init__(self, handler: Handler, limits: Limits | None = None, *, needs_authorization: bool = False) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.needs_authorization = needs_authorization
        self.closing = False
        self.refused = 0
        """How many connections were refused, because there were too many."""
        self.held_bytes = 0
        """Bytes of requests that have not been served yet, of all clients together."""
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._handshakes: set[Handshake] = set()
        self._addresses: dict[str, AddressUse] = {}
        self._tls: ssl_module.SSLContext | None = None
        self._all_closed: asyncio.Event = asyncio.Event()
        self._refusal_logged_at = float("-inf")
        self._sweeper: asyncio.TimerHandle | None = None
        self._unix_paths: list[tuple[str, int]] = []

    async def start_unix(self, path: str | os.PathLike[str]) -> None:
        """Serve on a Unix socket that only this user can open; a stale socket file is replaced.

        Raises:
            InvalidInputError: the path is too long for a socket address.
        """
        name = os.fspath(path)
        if len(os.fsencode(name)) > _MAX_UNIX_PATH:
            raise InvalidInputError(
                f"{name}: too long for a Unix socket ({_MAX_UNIX_PATH} bytes at most); set TMPDIR to a shorter path"
            )
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _unlink(name)
            listener.bind(name)
            # Set before it listens, so there is no moment in which others could connect.
            os.chmod(name, 0o600)
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._unix_paths.append((name, os.stat(name).st_ino))
        self._servers.append(server)

    async def start_tcp(
        self, host: str | None, port: int, ssl: ssl_module.SSLContext | None = None, *, accept: bool = True
    ) -> tuple[str, int]:
        """Serve on TCP.

        Args:
            host: the address; None = all.
            port: 0 = one that is free.
            ssl: with TLS when it is given.
            accept: whether clients are accepted at once. Else they wait, connected, until `accept` is called.

        Returns:
            The address.
        """
        loop = asyncio.get_running_loop()
        factory: Callable[[], asyncio.Protocol] = lambda: Connection(self)  # noqa: E731
        if ssl is not None:
            self._tls = ssl
            small_buffers()
            factory = lambda: Handshake(self, self._current_tls)  # noqa: E731
        server = await loop.create_server(factory, host, port, backlog=BACKLOG, start_serving=accept)
        self._servers.append(server)
        if not accept:
            for each in server.sockets:
                with socket.fromfd(each.fileno(), each.family, each.type) as listener:
                    listener.listen(BACKLOG)
        address, bound = server.sockets[0].getsockname()[:2]
        return address, bound

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections) + len(self._handshakes)

    async def accept(self) -> None:
        """Accept the clients that wait, and all that come from now on."""
        for server in self._servers:
            await server.start_serving()

    def replace_tls(self, context: ssl_module.SSLContext) -> None:
        """Use this context for the connections that come from now on; those that stand are not touched."""
        self._tls = context

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop listening, let requests in progress end for up to `grace_s`, then cancel them."""
        self.closing = True
        for server in self._servers:
            server.close()
        for handshake in list(self._handshakes):
            if handshake.task is not None:
                handshake.task.cancel()
        for connection in list(self._connections):
            connection.close_when_idle()
        if self._connections:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.close_now()
                await self._all_closed.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for name, inode in self._unix_paths:
            _unlink(name, inode)

    # For the connections.

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False when a limit is reached or the server is closing."""
        self._connections.add(connection)
        if self._sweeper is None:
            self._schedule_sweep()
        admitted = self._count(connection.address)
        connection.use = self._addresses[connection.address]
        return admitted

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is gone."""
        self._connections.discard(connection)
        self._uncount(connection.address)
        if not self._connections:
            self._all_closed.set()

    def admit_handshake(self, handshake: Handshake) -> bool:
        """Count a client whose handshake begins; False when a limit is reached or the server is closing."""
        self._handshakes.add(handshake)
        if self._count(handshake.address):
            return True
        self.forget_handshake(handshake)
        return False

    def forget_handshake(self, handshake: Handshake) -> None:
        """Drop a client whose handshake is over, well or not."""
        self._handshakes.discard(handshake)
        self._uncount(handshake.address)

    def _count(self, address: str) -> bool:
        limits = self.limits
        use = self._addresses.setdefault(address, AddressUse())
        use.connections += 1
        crowded = address != "unix" and use.connections > limits.connections_per_address
        if self.connections <= limits.connections and not crowded:
            return not self.closing
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._refusal_logged_at >= REFUSAL_LOG_INTERVAL_S:
            self._refusal_logged_at = now
            which = f"{address} has {limits.connections_per_address}" if crowded else f"{limits.connections} are open"
            logger.warning(
                "refused a connection: %s, which is the limit; clients try again (%d refused until now)",
                which,
                self.refused,
            )
        return False

    def _uncount(self, address: str) -> None:
        use = self._addresses[address]
        use.connections -= 1
        if use.connections <= 0:
            del self._addresses[address]

    def _current_tls(self) -> ssl_module.SSLContext:
        assert self._tls is not None
        return self._tls

    def _schedule_sweep(self) -> None:
        # One timer for all connections: a timer for each request would cost more than the request's parsing.
        limits = self.limits
        interval = min(limits.idle_s, limits.request_s, limits.write_s, limits.linger_s, limits.working_s) / 2
        self._sweeper = asyncio.get_running_loop().call_later(interval, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        try:
            for connection in list(self._connections):
                if now >= connection.deadline or now >= connection.write_deadline:
                    connection.expire(now)
                if now >= connection.interim_at:
                    connection.send_interim(now)
        finally:
            if self._connections:
                self._schedule_sweep()


def _unlink(name: str, inode: int | None = None) -> None:
    """Remove a socket file if it is there (and still the one with that inode number)."""
    if os.path.lexists(name) and inode in (None, os.lstat(name).st_ino):
        os.unlink(name)
