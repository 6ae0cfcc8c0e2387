"""A browser and the synthetic server; a skip says whether Playwright (`make test-ui`) or a chromium is missing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opened_tab import Opened
from synthetic_server import Invented, Server

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-ui")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no chromium on PATH: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=[*arguments, "--enable-precise-memory-info"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    experiments = [
        Invented("digits", 60),
        Invented("population", 20, running=0, pbt=True),
        Invented("markup", 40, nasty=True),
    ]
    server = Server([*experiments, Invented("large", 10_000)], actions=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.online = False
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def tab(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """A new tab; parametrize it indirectly with more options of its context."""
    context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | getattr(request, "param", {})))
    opened = Opened(context.new_page(), server.url)
    yield opened
    context.close()
    assert opened.problems == []
