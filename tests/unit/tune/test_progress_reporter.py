from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune import CLIReporter, JupyterNotebookReporter, ProgressReporter
from trialpod.tune.outcomes import TrialOutcome
from trialpod.tune.progress_table import as_html, best_of, chosen, counts_line
from trialpod.tune.trial import Trial


def trial(number: int, status: str = "TERMINATED", result: dict[str, Any] | None = None, **config: Any) -> Trial:
    return Trial(
        TrialOutcome(
            trial_id=f"abcde_{number:05d}",
            name=f"train_abcde_{number:05d}",
            config={"lr": number / 10, "fixed": 1, **config},
            status=status,
            path=f"/exp/trial_{number}",
            last_result={"score": float(number), "training_iteration": 3} if result is None else result,
            failures=1 if status == "ERROR" else 0,
            error="ValueError" if status == "ERROR" else "",
        )
    )


def text(
    reporter: CLIReporter, trials: list[Trial], capsys: pytest.CaptureFixture[str], *, done: bool = False
) -> str:
    reporter.report(trials, done, "a line")
    return capsys.readouterr().out


def test_a_report_counts_names_the_best_and_shows_what_varies(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = CLIReporter()
    reporter.setup(start_time=0.0, total_samples=5, metric="score", mode="max")
    out = text(reporter, [trial(1), trial(2, "RUNNING"), trial(3, "ERROR")], capsys)
    assert "Number of trials: 3/5 (1 RUNNING, 1 TERMINATED, 1 ERROR)" in out
    assert "Current best trial: train_abcde_00003 with score=3" in out
    header = next(line for line in out.splitlines() if line.startswith("Trial name")).split()
    assert header == ["Trial", "name", "status", "lr", "iter", "score"]
    assert "/exp/trial_3/error.txt" in out
    assert "a line" in out


def test_columns_have_the_titles_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = CLIReporter(metric_columns={"score": "points"}, parameter_columns=["fixed"])
    reporter.add_metric_column("training_iteration", "epoch")
    out = text(reporter, [trial(1)], capsys)
    assert "points" in out
    assert "epoch" in out
    assert " lr" not in out
    with pytest.raises(InvalidInputError, match="there is such a column already"):
        reporter.add_metric_column("score")


@pytest.mark.parametrize(("cls", "before"), [(CLIReporter, []), (JupyterNotebookReporter, [True])])
def test_metric_columns_may_come_first(cls: Any, before: list[bool]) -> None:
    assert cls(*before, ["cost"]).metric_columns == {"cost": "cost"}


def test_rows_are_limited_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [trial(number) for number in range(30)]
    reporter = CLIReporter(max_progress_rows=3)
    assert "... 27 more trials not shown" in text(reporter, trials, capsys)
    assert "train_abcde_00000" in text(reporter, trials, capsys, done=True)
    quiet = CLIReporter(print_intermediate_tables=False)
    assert "train_abcde_" not in text(quiet, trials, capsys)
    assert "train_abcde_00007" in text(quiet, trials, capsys, done=True)


def test_infinity_is_all_rows_and_nan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [trial(number) for number in range(30)]
    infinite = float("inf")
    shown = text(CLIReporter(max_progress_rows=infinite, max_column_length=infinite), trials, capsys)  # type: ignore[arg-type]
    assert "train_abcde_00029" in shown
    with pytest.raises(InvalidInputError, match=r"max_error_rows=nan\): must be a number"):
        CLIReporter(max_error_rows=float("nan"))  # type: ignore[arg-type]


def test_running_trials_come_first_or_the_best_ones() -> None:
    trials = [trial(1), trial(2), trial(3, "RUNNING"), trial(4, result={"score": float("nan")})]
    assert [t.trial_id[-1] for t in chosen(trials, 2, metric="score", mode="max", by_metric=False)] == ["3", "4"]
    assert [t.trial_id[-1] for t in chosen(trials, None, metric="score", mode="min", by_metric=True)] == list("1234")
    assert best_of(trials, "score", "max") == (trials[2], 3.0)
    assert counts_line([], None) == "Number of trials: 0"


class TestNumpy:
    def test_scalars_are_ranked_and_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        trials = [
            trial(1, result={"score": np.float32(0.1)}),
            trial(2, result={"score": np.int64(3), "b": np.float32(2)}),
        ]
        best = best_of(trials, "score", "max")
        assert best == (trials[1], 3.0)
        assert [t.trial_id[-1] for t in chosen(trials, None, metric="score", mode="max", by_metric=True)] == [
            "2",
            "1",
        ]
        reporter = CLIReporter()
        reporter.setup(start_time=0.0, total_samples=2, metric="score", mode="min")
        out = text(reporter, trials, capsys)
        assert "Current best trial: train_abcde_00001 with score=0.1" in out
        header = next(line for line in out.splitlines() if line.startswith("Trial name")).split()
        assert header[-2:] == ["score", "b"]
        assert "0.100000" not in out


def test_reports_keep_their_distance_but_the_last_one_comes() -> None:
    reporter = CLIReporter(max_report_frequency=1000)
    assert reporter.should_report([])
    assert not reporter.should_report([])
    assert reporter.should_report([], done=True)


def test_what_a_trial_reports_cannot_break_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = CLIReporter(metric_columns=["note"], max_column_length=10)
    out = text(reporter, [trial(1, result={"note": "a\n\x1b[31mb" + "c" * 50})], capsys)
    assert "\x1b" not in out
    assert "..." in out
    assert "<td>&lt;b&gt;</td>" in as_html([["x"], ["<b>"]])


def test_a_notebook_reporter_prints_where_there_is_no_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    JupyterNotebookReporter(max_progress_rows=5).report([trial(1)], False)
    assert "== Status ==" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [{"max_progress_rows": -1}, {"max_report_frequency": "5"}, {"metric_columns": "score"}, {"mode": "best"}],
)
def test_a_wrong_option_is_refused_by_name(arguments: Any) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        CLIReporter(**arguments)


def test_the_base_class_leaves_both_methods_to_its_subclass() -> None:
    with pytest.raises(NotImplementedError):
        ProgressReporter().should_report([])
