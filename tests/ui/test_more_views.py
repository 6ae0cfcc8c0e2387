"""Views in a real browser: what still loads, and what differs between trials."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grown_folder import Grown
from opened_tab import Opened
from synthetic_server import Invented, Json, Server

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]


class Loading(Invented):
    """An experiment of which some trials' files are still to be read."""

    unread = 30

    def header(self) -> Json:
        return super().header() | {"loading": self.unread}


@pytest.fixture
def loading() -> Loading:
    return Loading("loading", 40)


@pytest.fixture
def address(loading: Loading) -> Iterator[str]:
    with Server([loading]).serving() as server:
        yield server.url


class TestLoading:
    def test_curves_say_how_many_are_read(self, context: Any, address: str, loading: Loading) -> None:
        tab = Opened(context.new_page(), address)
        page = tab.show("#/e/loading/curves", ".views-curves .progress:not([hidden])")
        assert "10 of 40 are read" in page.locator(".views-curves figcaption").inner_text()
        assert page.locator(".views-curves .progress").evaluate("bar => [bar.value, bar.max]") == [10, 40]
        loading.unread = 0
        loading.advance()
        page.wait_for_selector(".views-curves .progress", state="hidden")
        page.wait_for_function(
            "() => !/are read/.test(document.querySelector('.views-curves figcaption').textContent)"
        )
        assert tab.problems == []


class TestActions:
    @pytest.fixture
    def acting(self) -> Iterator[Server]:
        with Server([Invented("acting", 20)], actions=True).serving() as server:
            yield server

    def test_command_has_the_number_that_is_typed(self, context: Any, acting: Server) -> None:
        page = Opened(context.new_page(), acting.url).show("#/e/acting/trials")
        page.get_by_role("button", name="More samples").click()
        shown = page.locator("dialog pre.command")
        assert '"numSamples":510' in shown.inner_text()
        page.get_by_label("How many more").fill("4")
        assert '"numSamples":504' in shown.inner_text()
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog", state="detached")
        assert acting.posted == [("/api/experiments/acting/actions/more-samples", {"samples": 4})]

    def test_buttons_follow_the_experiments_state(self, context: Any, acting: Server) -> None:
        page = Opened(context.new_page(), acting.url).show("#/e/acting/trials")
        resume = 'button[data-action="resume"]'
        page.wait_for_selector(f"{resume}:disabled")
        acting.experiments["acting"].suspended = True
        acting.experiments["acting"].advance()
        page.wait_for_selector(f"{resume}:enabled")
        page.wait_for_selector('button[data-action="suspend"]:disabled')

    def test_buttons_are_asked_for_again_after_an_action(self, context: Any, acting: Server) -> None:
        page = Opened(context.new_page(), acting.url).show("#/e/acting/trials")
        page.get_by_role("button", name="Suspend", exact=True).click()
        acting.experiments["acting"].suspended = True  # no event says so
        page.locator("dialog button[type=submit]").click()
        page.wait_for_selector('button[data-action="resume"]:enabled')


class TestCompare:
    def test_shows_only_what_differs_until_all_is_wanted(self, tab: Opened, grown: Grown) -> None:
        trials = grown.digits.host.engine.state.trials.values()
        pairs = combinations(trials, 2)
        one, other = next((a, b) for a, b in pairs if a.config["optimizer"] == b.config["optimizer"])
        page = tab.show(f"#/e/digits/compare?selected={one.trial_id},{other.trial_id}", "table.compare")
        names = page.locator("table.compare tbody th")
        assert "lr" in names.all_inner_texts()
        assert "optimizer" not in names.all_inner_texts()
        page.get_by_text("Show what is equal too").click()
        assert "optimizer" in names.all_inner_texts()


class TestTable:
    def test_saves_what_the_filter_leaves_as_csv(self, tab: Opened, tmp_path: Path) -> None:
        page = tab.show("#/e/digits/trials?states=ERROR")
        shown = page.locator(".grid-row[data-id]").count()
        with page.expect_download() as saved:
            page.get_by_role("button", name="CSV").click()
        saved.value.save_as(tmp_path / "trials.csv")
        heads, *lines = (tmp_path / "trials.csv").read_text().splitlines()
        assert "lr" in heads
        assert len(lines) == shown > 0
