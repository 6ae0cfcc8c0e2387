"""Runs the server in the foreground, on loopback, until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from trialpod.errors import InvalidInputError
from trialpod_operator.ui.access import Actions, Experiments, Sessions, allowed_hosts
from trialpod_operator.ui.app import Server
from trialpod_operator.ui.running_pages import PageFile

LOOPBACK = "127.0.0.1"


AppOf = Callable[[Sessions, frozenset[str]], tuple[ASGIApp, Callable[[], None]]]
"""Makes the application for sessions and allowed hosts; and what ends its streams of events."""


def page_of(experiments: Experiments, actions: Actions | None = None, *, optuna: bool = False) -> AppOf:
    """Return what makes the page.

    Args:
        experiments: what is served.
        actions: what may be changed; None: nothing.
        optuna: serve optuna-dashboard in place of the page.
    """

    def made(sessions: Sessions, hosts: frozenset[str]) -> tuple[ASGIApp, Callable[[], None]]:
        server = Server(experiments, sessions, hosts, actions)
        if optuna:
            from trialpod_operator.ui.optuna_dashboard import dashboard_app

            return dashboard_app(experiments, sessions, hosts), server.stop
        return server.app(), server.stop

    return made


def serve(app_of: AppOf, *, port: int = 0, at: str = "", location: str = "", announce: Callable[[str], None]) -> None:
    """Serve an application to browsers of this machine.

    Args:
        app_of: makes it.
        port: of 127.0.0.1; 0 chooses a free one.
        at: what of it the link opens, as "#/e/NAME".
        location: the folder or URI that it shows, by which other commands of this user find the link; "": by none.
        announce: called with each link that opens a session.

    Raises:
        InvalidInputError: the port is taken.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"--port {port}: {error.strerror}; choose another one, or leave it out for any free one"
        ) from error
    bound = int(listener.getsockname()[1])

    page = PageFile(location) if location else None

    def publish(token: str) -> None:
        link = f"http://{LOOPBACK}:{bound}/?token={token}"
        if page is not None:
            page.write(link)
        announce(link + at)

    sessions = Sessions(publish)
    app, end_streams = app_of(sessions, allowed_hosts(bound))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
    )
    running = PageServer(config, end_streams, lambda: publish(sessions.token))
    try:
        with listener:
            running.run(sockets=[listener])
    finally:
        if page is not None:
            page.close()


class PageServer(uvicorn.Server):
    """Ends streams of events before it waits for the answers that are on their way.

    Args:
        config: of uvicorn.
        end_streams: ends them.
        started: called once it listens.
    """

    def __init__(
        self, config: uvicorn.Config, end_streams: Callable[[], None], started: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets=sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the server."""
        self._end_streams()
        await super().shutdown(sockets=sockets)
