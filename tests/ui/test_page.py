"""The page in a real browser: quick with 10,000 trials, usable by keyboard, readable by everybody, live."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from opened_tab import Opened
from synthetic_server import NASTY, Server

pytestmark = [
    pytest.mark.ui,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(300),
]

MAX_FIRST_PAINT_MS = 2000
MAX_BRUSH_MS = 100
MAX_HEAP_BYTES = 300e6
STEPS = 12
TABS = ["", "/trials", "/curves", "/parameters", "/timeline", "/groups", "/compare", "/trial/trial_00017"]
LOADED = ".grid-row[data-id], .uplot, .timeline-scroll, .choices, .decisions, .empty"


def serious(page: Any) -> list[str]:
    """Return what axe finds serious."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


class TestViews:
    @pytest.mark.parametrize("view", TABS)
    def test_axe_finds_nothing_serious(self, tab: Opened, view: str) -> None:
        assert serious(tab.show(f"#/e/digits{view}", LOADED)) == []

    @pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
    def test_dark_mode_is_dark_and_readable(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
        assert shade < 40
        assert serious(page) == []

    # At 200 % a window of 1440 pixels has the room of 720.
    @pytest.mark.parametrize(
        "tab", [{"viewport": {"width": 720, "height": 450}, "device_scale_factor": 2}], indirect=True
    )
    def test_nothing_overflows_at_200_percent(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    def test_several_experiments_are_overlaid(self, tab: Opened) -> None:
        page = tab.show("#/overlay?id=digits&id=population", "a.legend-item")
        assert page.locator("a.legend-item").count() == 2

    def test_best_trial_reason_and_parameter_are_in_sight(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        text = page.locator("main").inner_text()
        assert "Best trial" in text
        assert "ASHA stopped it at rung 9" in text
        assert re.search(r"lr explains 61 %", text)


class TestMarkup:
    @pytest.mark.parametrize("view", ["", "/trial/trial_00017", "/compare?selected=trial_00001,trial_00017"])
    def test_values_stay_text(self, tab: Opened, view: str) -> None:
        page = tab.show(f"#/e/markup{view}", LOADED)
        page.wait_for_function("words => document.body.innerText.includes(words)", arg=NASTY)
        assert page.locator("img, main script").count() == 0
        assert page.title() != "1"


class TestKeyboard:
    def test_table_opens_and_selects_trials(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/trials")
        page.locator('.grid-row[tabindex="0"]').focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        assert page.locator("a", has_text="Compare 2").is_visible()
        page.keyboard.press("Enter")
        page.wait_for_selector(".decisions, .trial-head")
        assert "/trial/" in page.url

    def test_axis_takes_a_range_and_escape_removes_it(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        page.locator('.axis-name[data-key="p:layers"]').focus()
        page.keyboard.press("Enter")
        page.locator("dialog input[type=number]").first.fill("5")
        page.keyboard.press("Enter")
        page.wait_for_selector(".chip.range")
        assert "of 60 trials" in page.locator(".table-card .note").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_selector(".chip.range", state="detached")

    def test_tabs_and_zoom(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        page.locator("#tab-overview").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(".views-curves .u-over")
        page.locator(".views-curves .u-over").focus()
        page.keyboard.press("+")
        page.wait_for_selector(".reset-zoom", state="visible")
        page.keyboard.press("0")
        page.wait_for_selector(".reset-zoom", state="hidden")


class TestFilter:
    def test_link_opens_the_same_view(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/trials")
        page.locator(".query").fill("optimizer=adam layers>2")
        page.wait_for_function("() => document.querySelector('.filter .note').textContent.includes('of 60')")
        page.wait_for_function("() => location.hash.includes('optimizer')")
        shown = page.locator(".filter .note").inner_text()
        page = tab.show(page.url.removeprefix(tab.base))
        assert page.locator(".filter .note").inner_text() == shown

    def test_what_is_no_condition_says_why(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/trials")
        page.locator(".query").fill("lerning_rate<1")
        page.wait_for_function("() => document.querySelector('.problem').textContent.includes('there is no column')")


class TestLive:
    def test_update_keeps_selection_filter_and_focus(self, tab: Opened, server: Server) -> None:
        page = tab.show("#/e/digits/trials?states=RUNNING")
        row = page.locator(".grid-row[data-id]").first
        row.focus()
        page.keyboard.press("Space")
        trial = page.evaluate("document.activeElement.dataset.id")
        before = page.locator(".grid-row.selected").inner_text()
        server.experiments["digits"].advance()
        page.wait_for_function("old => document.querySelector('.grid-row.selected').innerText !== old", arg=before)
        assert page.locator(".grid-row.selected").get_attribute("data-id") == trial
        assert page.evaluate("document.activeElement.dataset.id") == trial
        assert page.locator('.chip[aria-pressed="true"]').count() == 1

    def test_restart_shows_a_banner_and_recovers(self, browser: Any) -> None:
        from synthetic_server import Invented

        experiment = Invented("digits", 30)
        first = Server([experiment])
        threading.Thread(target=first.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{first.url}#/e/digits/trials")
        page.wait_for_selector(".grid-row[data-id]")
        first.online = False
        experiment.advance()
        first.shutdown()
        first.server_close()
        page.wait_for_selector(".stale")
        again = Server([experiment], first.server_address[1])
        threading.Thread(target=again.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        page.wait_for_selector(".stale", state="detached")
        context.close()
        again.online = False
        again.shutdown()
        again.server_close()


class TestActions:
    def test_command_is_shown_before_anything_happens(self, tab: Opened, server: Server) -> None:
        page = tab.show("#/e/digits")
        page.get_by_role("button", name="Suspend").click()
        assert page.locator("dialog .command").inner_text() == "trialpod suspend digits"
        assert server.posted == []
        page.locator("dialog button.primary").click()
        page.wait_for_selector("dialog", state="detached")
        assert server.posted == [("/api/experiments/digits/actions/suspend", {})]


class TestScale:
    def test_first_paint_with_10000_trials(self, tab: Opened) -> None:
        painted = []
        for _ in range(3):  # the best of three: other programs may hold the processor
            page = tab.show("#/e/large")
            painted.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        print(f"first paint: {min(painted):.0f} ms")
        assert min(painted) < MAX_FIRST_PAINT_MS

    def test_brush_and_heap_with_10000_trials(self, tab: Opened) -> None:
        page = tab.show("#/e/large/parameters", ".axis-name")
        page.wait_for_selector(".bars li")
        canvas = page.locator(".parallel canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        # What the page's thread computes for a step, by the thread's own clock: other programs do not count.
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def metric(name: str) -> float:
            return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}[name]

        page.mouse.move(box["x"] + 70, box["y"] + 80)
        page.mouse.down()
        before = metric("TaskDuration")
        for step in range(STEPS):
            page.mouse.move(box["x"] + 70, box["y"] + 100 + 12 * step)
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        took_ms = 1000 * (metric("TaskDuration") - before) / STEPS
        page.mouse.up()
        page.wait_for_selector(".chip.range")
        session.send("HeapProfiler.collectGarbage")
        used = metric("JSHeapUsedSize")
        wall = sorted(page.evaluate("performance.getEntriesByName('trialpod:brush').map(each => each.duration)"))
        print(
            f"a step of a brush: {took_ms:.0f} ms of the thread, {wall[len(wall) // 2]:.0f} ms; {used / 1e6:.0f} MB"
        )
        assert took_ms < MAX_BRUSH_MS
        assert used < MAX_HEAP_BYTES
