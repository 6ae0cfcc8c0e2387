from __future__ import annotations

import io
from typing import Any

import pytest
from display_views import experiment, trial
from rich.console import Console

from trialpod.tune import CLIReporter, ProgressReporter
from trialpod.tune.callback_list import CallbackError
from trialpod_operator.display.events import warning
from trialpod_operator.display.reporter import ReporterDisplay
from trialpod_operator.display.table import TableDisplay
from trialpod_operator.display.table_options import table_options


def drawn(reporter: CLIReporter, shown: Any) -> str:
    console = Console(file=io.StringIO(), width=140, height=40, force_terminal=False, legacy_windows=False)
    display = TableDisplay(io.StringIO(), console=console, options=table_options(reporter))
    with console.capture() as capture:
        console.print(display.render(shown))
    return capture.get()


def test_a_reporters_columns_are_those_of_the_table() -> None:
    rows = [
        trial(n, config={"lr": n, "width": 7}, last_result={"acc": n / 10, "loss": 1.5}, value=float(n))
        for n in range(3)
    ]
    reporter = CLIReporter(metric_columns={"acc": "accuracy"}, parameter_columns={"width": "wide"})
    out = drawn(reporter, experiment(rows))
    header = next(line for line in out.splitlines() if line.strip().startswith("trial"))
    assert "accuracy" in header
    assert "wide" in header
    assert "lr" not in header


def test_a_reporter_limits_and_orders_the_rows() -> None:
    rows = [trial(n, value=float(n)) for n in range(6)]
    out = drawn(CLIReporter(max_progress_rows=2, sort_by_metric=True), experiment(rows, metric="score", mode="max"))
    assert [n for n in range(6) if f"ab12c_{n:05d}" in out.partition("trial ")[2]] == [4, 5]


class Own(ProgressReporter):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def setup(self, **info: Any) -> None:
        self.calls.append(("setup", info["metric"], info["total_samples"]))

    def should_report(self, trials: Any, done: bool = False) -> bool:
        return done

    def report(self, trials: Any, done: bool, *sys_info: str) -> None:
        self.calls.append((list(trials), done, len(sys_info)))


def test_custom_reporter_is_used_and_warnings_still_show() -> None:
    stream, reporter = io.StringIO(), Own()
    display = ReporterDisplay(stream, reporter, [])
    shown = experiment([], metric="score", total=4)
    display.start(shown)
    display.update(shown)
    display.event(warning("the disk is nearly full"))
    display.finish(shown)
    assert reporter.calls == [("setup", "score", 4), ([], True, 2)]
    assert "the disk is nearly full" in stream.getvalue()


def test_an_exception_in_a_reporter_names_it() -> None:
    display = ReporterDisplay(io.StringIO(), ProgressReporter(), [])
    with pytest.raises(CallbackError, match=r"the progress reporter ProgressReporter raised NotImplementedError"):
        display.update(experiment([]))
