"""Results in a notebook: tables as HTML, figures of matplotlib."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.result_grid import ResultGrid

MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def grid(tmp_path: Path) -> ResultGrid:
    trials = []
    for index in range(6):
        folder = tmp_path / f"trial_{index}"
        folder.mkdir()
        rows = [{"training_iteration": step, "loss": 1.0 / (step + index)} for step in range(1, 4)]
        (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {"lr": 10.0**-index, "layers": index % 3, "optimizer": MARKUP if index else "adam", "fixed": 1}
        if index % 2:
            config["momentum"] = 0.9
        trials.append(
            TrialOutcome(
                trial_id=str(index), name=f"trial_{index}", config=config, path=str(folder), last_result=rows[-1],
                status="ERROR" if index == 1 else "TERMINATED", error="it failed" if index == 1 else "",
            )
        )  # fmt: skip
    return ResultGrid(
        ExperimentOutcome(name="exp", path=str(tmp_path), state="Succeeded", metric="loss", mode="min", trials=trials)
    )


class TestHtml:
    def test_best_trial_is_first_and_values_are_escaped(self, grid: ResultGrid) -> None:
        html = grid._repr_html_()
        assert html.index("trial_5") < html.index("trial_0")
        assert MARKUP not in html
        assert "&lt;script&gt;" in html
        assert "<th>fixed</th>" not in html
        assert "6 trials, 1 failed" in html

    def test_result_shows_its_error_and_config(self, grid: ResultGrid) -> None:
        html = grid[1]._repr_html_()
        assert "it failed" in html
        assert "momentum" in html
        assert MARKUP not in html


class TestFigures:
    def test_curves_have_a_line_for_each_trial(self, grid: ResultGrid) -> None:
        (axes,) = grid.plot.curves().axes
        assert len(axes.lines) == 6
        assert axes.get_ylabel() == "loss"

    def test_a_metric_may_be_absent_from_last_results(self, grid: ResultGrid) -> None:
        for index, trial in enumerate(grid._outcome.trials):
            with Path(trial.path, "result.json").open("a") as stream:
                stream.write(json.dumps({"training_iteration": 4, "acc" if index == 5 else "note": 1}) + "\n")
            trial.last_result = {"training_iteration": 4, "note": 1}
        (axes,) = grid.plot.curves().axes
        assert [line.get_label() for line in axes.lines] == [f"trial_{index}" for index in range(6)]
        assert len(grid.plot.curves("acc").axes[0].lines) == 1
        html = grid._repr_html_()
        assert html.index("trial_5") < html.index("trial_0")
        assert "<td>0.125</td>" in html

    def test_slices_have_a_chart_for_each_varying_parameter(self, grid: ResultGrid) -> None:
        names = {axes.get_xlabel() for axes in grid.plot.slices().axes}
        assert names == {"lr", "layers", "optimizer", "momentum"}

    def test_parallel_keeps_trials_without_a_value(self, grid: ResultGrid) -> None:
        (axes,) = grid.plot.parallel().axes
        polylines = [line for line in axes.lines if len(line.get_xdata()) == 5]
        assert len(polylines) == 6
        assert "none" in [text.get_text() for text in axes.texts]

    def test_importance_ranks_shared_parameters(self, grid: ResultGrid) -> None:
        (axes,) = grid.plot.importance().axes
        assert {tick.get_text() for tick in axes.get_yticklabels()} == {"lr", "layers", "optimizer"}

    def test_unknown_metric_is_named(self, grid: ResultGrid) -> None:
        with pytest.raises(InvalidInputError, match=r"no trial reported 'acc'; reported: loss"):
            grid.plot.curves("acc")
