"""Signing in to the page of a cluster, and out of it, in a real browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from grown_folder import Grown
from opened_tab import Opened, new_context

from trialpod_operator.cluster_ui.reviews import Reviews
from trialpod_operator.cluster_ui.sign_in import SignIn
from trialpod_operator.ui.access import AllowedHosts
from trialpod_operator.ui.app import Server
from trialpod_operator.ui.local_experiments import LocalExperiments
from trialpod_operator.ui.serve import PageServer

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]

TOKEN = "token-of-ann"
REFUSED = "the server responded with a status of 401"


def review(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Answer as an API server that knows one token."""
    known = body["spec"]["token"] == TOKEN
    return {"status": {"authenticated": known, "user": {"username": "ann" if known else ""}}}


@pytest.fixture(scope="module")
def address(grown: Grown) -> Iterator[str]:
    """A server where users sign in, as in a cluster; its experiments are this machine's."""
    sign_in = SignIn(Reviews(review), 600.0)
    server = Server(
        LocalExperiments(str(grown.folder)), None, AllowedHosts([]), None, sign_in.authenticate, sign_in.routes()
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = PageServer(uvicorn.Config(server.app(), log_level="warning", access_log=False), server.stop)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        running.should_exit = True
        thread.join(60)


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Opened]:
    context = new_context(browser)
    yield Opened(context.new_page(), address)
    context.close()


class TestSignIn:
    def test_token_opens_the_page_and_the_button_ends_it(self, tab: Opened) -> None:
        page = tab.show("#/e/digits", "#token")
        assert page.url.endswith("/login#/e/digits")
        page.keyboard.type(TOKEN)  # the field has the focus
        page.keyboard.press("Enter")
        page.wait_for_selector(".grid-row[data-id]")
        assert page.url.endswith("/#/e/digits")
        assert page.locator("#user").inner_text() == "ann"
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("#token")
        assert page.evaluate("fetch('/api/session').then(answer => answer.status)") == 401

    def test_wrong_token_says_so_and_can_be_corrected(self, tab: Opened) -> None:
        page = tab.show("", "#token")
        page.locator("#token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_function(
            "() => /does not accept this token/.test(document.querySelector('#problem').textContent)"
        )
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#user:not([hidden])")

    def test_link_with_a_token_leaves_none_in_the_address(self, tab: Opened) -> None:
        page = tab.page
        page.goto(f"{tab.base}login#token={TOKEN}")
        page.wait_for_selector("#user:not([hidden])")
        assert TOKEN not in page.url
        assert TOKEN not in page.evaluate("document.documentElement.outerHTML")

    def test_axe_finds_nothing_and_the_console_is_quiet(self, tab: Opened) -> None:
        from axe_playwright_python.sync_playwright import Axe

        page = tab.show("login", "#token")
        assert [each["id"] for each in Axe().run(page).response["violations"]] == []
        assert [each for each in tab.problems if REFUSED not in each] == []  # whether there is a session was asked
