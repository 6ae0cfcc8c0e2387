"""The kubelet's probes on a plain port of its own, GET /healthz and GET /readyz, and pages of text such as /metrics.

No identity, no TLS, no request body, one request per connection. A probe answers with one sentence.

Invariants: a client gets a few seconds and a few kilobytes; of too many at once, the oldest is dropped. Own code:
aiohttp.web limits neither the time until the head of a request is complete nor the number of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

logger = logging.getLogger(__name__)

Probe = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and a sentence about it."""


@dataclass(frozen=True)
class Page:
    """A text that is made when it is asked for.

    Attributes:
        content_type: of the answer.
        make: returns the text; quickly, since it is called in the loop.
    """

    content_type: str
    make: Callable[[], str]


_MAX_HEAD_BYTES = 8 * 1024
_MAX_CLIENTS = 64
_TIMEOUT_S = 5.0


class ProbeServer:
    """Serves probes.

    Args:
        probes: by path, ``{"/healthz": ..., "/readyz": ...}``. One that raises is unwell.
        pages: by path, such as ``{"/metrics": ...}``. One that raises is answered with 500.
        timeout_s: seconds that a client may take.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        pages: Mapping[str, Page] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._probes = dict(probes)
        self._pages = dict(pages or {})
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # in the order in which they came

    async def start(self, host: str | None, port: int) -> tuple[str, int]:
        """Listen; return the address (for port 0)."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_MAX_HEAD_BYTES)
        address, bound = self._server.sockets[0].getsockname()[:2]
        return address, bound

    async def close(self) -> None:
        """Stop listening and drop the clients."""
        if self._server is not None:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            self._drop(client)
        await asyncio.gather(*clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            self._drop(next(iter(self._clients)))
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(lambda done: self._clients.pop(done, None))

    def _drop(self, client: asyncio.Task[None]) -> None:
        writer = self._clients.pop(client)
        client.cancel()
        writer.transport.abort()  # a task that has not begun does nothing when it is cancelled

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        probe = self._probes.get(path)
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "use GET", True)
        if path in self._pages:
            return self._page(path, method == "GET")
        if probe is None:
            return _response(
                "404 Not Found", f"the probes are {', '.join([*self._probes, *self._pages])}", method == "GET"
            )
        try:
            well, text = probe()
        except Exception as error:
            logger.exception("the probe of %s failed", path)
            well, text = False, f"the probe itself failed: {type(error).__name__}"
        return _response("200 OK" if well else "503 Service Unavailable", text, method == "GET")

    def _page(self, path: str, with_body: bool) -> bytes:
        page = self._pages[path]
        try:
            text = page.make()
        except Exception as error:
            logger.exception("the page %s failed", path)
            return _response("500 Internal Server Error", f"the page failed: {type(error).__name__}", with_body)
        return _response("200 OK", text.removesuffix("\n"), with_body, page.content_type)


def _response(status: str, text: str, with_body: bool, content_type: str = "text/plain; charset=utf-8") -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nCache-Control: no-store\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
