"""A browser and the servers; a skip says whether Playwright (`make test-ui`) or a chromium is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from grown_folder import Grown
from opened_tab import FOREIGN_NAME, Opened, new_context
from synthetic_server import Invented, Server

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-ui")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no chromium on PATH: apt-get install chromium")
    arguments = ["--enable-precise-memory-info", f"--host-resolver-rules=MAP {FOREIGN_NAME} 127.0.0.1"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path, args=[*arguments, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    found = Grown(tmp_path_factory.mktemp("grown"))
    yield found
    found.page.kill()


@pytest.fixture(scope="module")
def large() -> Iterator[Server]:
    """10,000 trials: what no engine brings about in seconds."""
    with Server([Invented("large", 10_000)]).serving() as server:
        yield server


@pytest.fixture
def context(browser: Any, grown: Grown, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A browser's window with a session; parametrize `tab` indirectly with more options of it."""
    context = new_context(browser, **({"viewport": {"width": 1440, "height": 900}} | getattr(request, "param", {})))
    context.add_cookies([grown.cookie])
    yield context
    context.close()


@pytest.fixture
def tab(context: Any, grown: Grown) -> Iterator[Opened]:
    opened = Opened(context.new_page(), grown.page.url)
    yield opened
    assert opened.problems == []
