"""Each view of an experiment in a real browser: what it shows, and what its controls do."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import yaml
from grown_folder import Grown
from opened_tab import Opened
from sample_experiment import SampleExperiment

from trialpod_operator.engine.trial import Trial

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]

LINK_ONLY = {"viewport": {"width": 1440, "height": 900}, "permissions": ["clipboard-read", "clipboard-write"]}


def trials(sample: SampleExperiment) -> list[Trial]:
    return list(sample.host.engine.state.trials.values())


def column(page: Any, name: str) -> list[str]:
    """Return the cells of a column of the table of trials, from the top."""
    heads = page.locator(".grid-head [role=columnheader]").all_inner_texts()
    place = next(at for at, head in enumerate(heads) if head.split("\n")[0] == name)
    found: list[str] = page.locator(".grid-row[data-id]").evaluate_all(
        "(rows, at) => rows.sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(row => row.children[at].innerText)",
        place,
    )
    return found


class TestList:
    def test_is_sorted_as_chosen(self, tab: Opened) -> None:
        page = tab.show("#/", "table.experiments tbody tr")
        names = page.locator("table.experiments tbody a.strong")
        page.get_by_role("button", name="name", exact=True).click()
        assert names.all_inner_texts() == sorted(names.all_inner_texts())
        page.get_by_role("button", name="state", exact=True).click()
        states = page.locator("table.experiments .pill").all_inner_texts()
        assert states == sorted(states)

    def test_counts_trials_stopped_early_apart(self, tab: Opened, grown: Grown) -> None:
        page = tab.show("#/", "table.experiments tbody tr")
        row = page.locator("table.experiments tbody tr", has=page.locator("a.strong", has_text="digits"))
        found = {each.get_attribute("title"): each.inner_text().split()[-1] for each in row.locator("li").all()}
        pruned = [each for each in trials(grown.digits) if each.stopped and each.stop_reason.get("rule") != "max_t"]
        assert found["Stopped early"] == str(len(pruned))
        assert sum(map(int, found.values())) == len(trials(grown.digits))

    def test_chosen_ones_are_overlaid(self, tab: Opened) -> None:
        page = tab.show("#/", "table.experiments tbody tr")
        for name in ("digits", "population"):
            page.get_by_label(f"Overlay {name}").check()
        page.locator("a", has_text="Overlay 2").click()
        page.wait_for_selector("a.legend-item")
        assert page.locator("a.legend-item").count() == 2


class TestInterrupted:
    def test_trials_that_ran_are_pending(self, tab: Opened, grown: Grown) -> None:
        page = tab.show("#/e/digits/trials", ".grid-row[data-id]")
        running = [trial.trial_id for trial in trials(grown.digits) if trial.running]
        assert running
        chips = page.locator(".chip[data-state]").evaluate_all("chips => chips.map(chip => chip.dataset.state)")
        assert "PENDING" in chips
        assert "RUNNING" not in chips
        page = tab.show(f"#/e/digits/trial/{running[0]}", ".trial-head")
        assert "Pending" in page.locator(".trial-head h2").inner_text()
        page.get_by_text("the experiment was interrupted").first.wait_for()


class TestBestTrial:
    @pytest.mark.parametrize("context", [LINK_ONLY], indirect=True)
    def test_is_copied_as_python_and_as_yaml(self, tab: Opened, grown: Grown) -> None:
        page = tab.show("#/e/digits")
        best = max(trials(grown.digits), key=lambda trial: trial.value or 0.0)
        page.get_by_role("button", name="Copy as Python").click()
        page.wait_for_function("() => navigator.clipboard.readText().then(text => text.startsWith('config = '))")
        copied = page.evaluate("navigator.clipboard.readText()").removeprefix("config = ")
        assert ast.literal_eval(copied) == best.config
        page.get_by_role("button", name="Copy as YAML").click()
        page.wait_for_function("() => navigator.clipboard.readText().then(text => !text.startsWith('config = '))")
        assert yaml.safe_load(page.evaluate("navigator.clipboard.readText()")) == best.config


class TestColumns:
    def test_chosen_ones_appear_and_stay_in_the_link(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/trials")
        assert "loss" not in page.locator(".grid-head").inner_text()
        page.get_by_role("button", name="Columns").click()
        page.locator(".popover").get_by_label("loss").check()
        page.wait_for_function("() => document.querySelector('.grid-head').innerText.includes('loss')")
        page.wait_for_function("() => location.hash.includes('loss')")
        page.reload()
        page.wait_for_selector(".grid-row[data-id]")
        assert "loss" in page.locator(".grid-head").inner_text()
        page.get_by_role("button", name="Columns").click()
        page.get_by_role("button", name="Usual columns").click()
        assert "loss" not in page.locator(".grid-head").inner_text()

    def test_any_parameter_and_metric_sorts(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/trials")
        page.locator(".grid-head").get_by_role("button", name="dropout").click()
        assert len(values := [float(cell) for cell in column(page, "dropout")]) > 10
        assert values == sorted(values)
        page.locator(".grid-head").get_by_role("button", name="dropout").click()
        assert (values := [float(cell) for cell in column(page, "dropout")]) == sorted(values, reverse=True)
        page.get_by_role("button", name="Columns").click()
        page.locator(".popover").get_by_label("loss").check()
        page.keyboard.press("Escape")
        page.locator(".grid-head").get_by_role("button", name="loss").click()
        assert (values := [float(cell) for cell in column(page, "loss") if cell[:1].isdigit()]) == sorted(values)
        for part in ("sort", "columns"):
            page.wait_for_function(f"() => /{part}=[^&]*loss/.test(location.hash)")
        before = column(page, "loss")
        page.reload()
        page.wait_for_selector(".grid-row[data-id]")
        assert column(page, "loss") == before


class TestCurves:
    @pytest.mark.parametrize(("label", "value"), [("over", "time"), ("over", "cost"), ("axes", "y"), ("axes", "x")])
    def test_axes_are_what_is_chosen(self, tab: Opened, label: str, value: str) -> None:
        page = tab.show("#/e/digits/curves", ".views-curves .legend-item")
        over = page.locator(".views-curves .u-over")
        before = over.get_attribute("data-shown")
        page.locator(".views-curves label.field", has_text=label).locator("select").select_option(value)
        page.wait_for_function(
            "before => document.querySelector('.views-curves .u-over').dataset.shown !== before", arg=before
        )

    def test_cost_without_gpus_is_no_gpu_time(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/curves", ".views-curves .u-over")
        assert "trial time" in page.locator(".views-curves").get_by_label("over").inner_text()
        assert "GPU time" not in page.locator("body").inner_text()

    def test_stopped_trials_are_grey_beside_the_best(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/curves", ".views-curves .legend-item")
        assert page.locator(".views-curves .legend-item").count() >= 3
        colours = page.evaluate(
            """() => { const canvas = document.querySelector('.views-curves canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let grey = 0, coloured = 0;
            for (let at = 0; at < data.length; at += 4) {
              if (!data[at + 3]) continue;
              const rgb = [data[at], data[at + 1], data[at + 2]];
              const spread = Math.max(...rgb) - Math.min(...rgb);
              if (spread < 24) grey += 1; else if (spread > 60) coloured += 1;
            }
            return [grey, coloured]; }"""
        )
        assert min(colours) > 200


class TestHistory:
    def test_best_so_far_only_gets_better(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/parameters", ".u-over")
        page.get_by_role("button", name="Show as table: History").click()
        figure = page.locator("figure", has=page.get_by_role("heading", name="History"))
        best = [float(cells.split("\t")[3]) for cells in figure.locator("tbody tr").all_inner_texts()]
        assert len(best) > 30
        assert best == sorted(best)


class TestParallelCoordinates:
    def test_missing_parameter_has_a_tick_of_its_own(self, tab: Opened, grown: Grown) -> None:
        axis = '.axis-name[data-key="p:optimizer.momentum"]'
        page = tab.show("#/e/tradeoff/parameters", axis)
        page.locator(axis).focus()
        page.keyboard.press("Enter")
        for name in ("From", "To"):  # nothing but what has none
            page.locator("dialog").get_by_label(name).fill("99")
        page.locator("dialog").get_by_label("also trials without a value").check()
        page.keyboard.press("Enter")
        page.wait_for_selector(".chip.range")
        assert "none" in page.locator(".chip.range").inner_text()
        without = sum("momentum" not in each.config["optimizer"] for each in trials(grown.tradeoff))
        assert f"{without} of {len(grown.tradeoff.trials)}" in page.locator(".filter .note").inner_text()


class TestSlices:
    def test_each_parameter_has_one_with_its_best_value(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/parameters", "figcaption:has-text('Best at')")
        titles = page.locator("figure", has_text="Best at").locator("h3, h4").all_inner_texts()
        assert {"lr", "optimizer", "layers", "dropout", "seed"} <= set(titles)


class TestGroups:
    def test_seed_is_left_out_unless_it_is_chosen(self, tab: Opened) -> None:
        page = tab.show("#/e/digits/groups", ".choices input")
        assert not page.locator(".choices").get_by_label("seed").is_checked()
        for name in ("lr", "layers", "dropout"):
            page.locator(".choices").get_by_label(name).uncheck()
        page.wait_for_function("() => /^3 groups, 3 of them/.test(document.querySelector('figcaption').textContent)")
        page.locator(".choices").get_by_label("seed").check()
        page.wait_for_function("() => /^9 groups/.test(document.querySelector('figcaption').textContent)")


class TestTradeOff:
    def test_front_is_marked_and_listed(self, tab: Opened, grown: Grown) -> None:
        page = tab.show("#/e/tradeoff", ".u-over")
        figure = page.locator("figure", has_text="Trade-off")
        assert "on the front" in figure.locator("figcaption").inner_text()
        figure.get_by_role("button", name="Show as table").click()
        rows = [cells.split("\t") for cells in figure.locator("tbody tr").all_inner_texts()]
        chosen = [(float(accuracy), float(latency)) for _, accuracy, latency, mark in rows if mark == "yes"]
        others = [(float(accuracy), float(latency)) for _, accuracy, latency, mark in rows if mark == "no"]
        assert chosen
        assert all(accuracy >= 0.6 for accuracy, _ in chosen)
        for accuracy, latency in others:
            assert accuracy < 0.6 or any(a >= accuracy and b <= latency for a, b in chosen)
        assert "of" in page.locator(".stat", has_text="Best trial").inner_text()

    def test_experiment_with_one_metric_has_none(self, tab: Opened) -> None:
        page = tab.show("#/e/digits")
        assert page.locator("figure", has_text="Trade-off").count() == 0
