from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trialpod.compat import ray as compat
from trialpod.errors import InvalidInputError
from trialpod.tune import Checkpoint, ResultGrid
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.result import NoResultError, Result, TrialFailedError


def grid(
    tmp_path: Path,
    losses: list[list[float]],
    *,
    metric: str | None = "loss",
    mode: Any = "min",
    failed: tuple[int, ...] = (),
) -> ResultGrid:
    trials = []
    for index, values in enumerate(losses):
        path = tmp_path / f"trial_{index}"
        path.mkdir()
        rows = [
            {"loss": value, "group/x": value, "training_iteration": n, "config": {"i": index}}
            for n, value in enumerate(values, start=1)
        ]
        (path / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        trials.append(
            TrialOutcome(
                trial_id=str(index),
                name=f"t_{index}",
                config={"i": index},
                status="ERROR" if index in failed else "TERMINATED",
                path=str(path),
                last_result=rows[-1] if rows else None,
                error="ValueError: no" if index in failed else "",
            )
        )
    return ResultGrid(
        ExperimentOutcome(name="e", path=str(tmp_path), state="Succeeded", metric=metric, mode=mode, trials=trials)
    )


def best(results: ResultGrid, *args: Any, **kwargs: Any) -> int:
    config = results.get_best_result(*args, **kwargs).config
    assert config is not None
    return int(config["i"])


def test_an_older_library_gets_its_analysis(tmp_path: Path) -> None:
    """AutoGluon takes it from the grid that Ray's Tuner returns."""
    analysis = grid(tmp_path, [[1.0], [0.5]])._experiment_analysis
    assert analysis.best_config == {"i": 1}
    assert [trial.trial_id for trial in analysis.trials] == ["0", "1"]


def test_a_grid_is_a_sequence_of_results(tmp_path: Path) -> None:
    results = grid(tmp_path, [[1.0], [2.0], [3.0]], failed=(1,))
    assert len(results) == 3
    assert [r.config for r in results] == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert results[-1].config == {"i": 2}
    assert [r.config for r in results[:2]] == [{"i": 0}, {"i": 1}]
    assert (results.num_errors, results.num_terminated) == (1, 2)
    assert [str(error) for error in results.errors] == ["trial t_1: ValueError: no"]
    assert results.experiment_path == str(tmp_path)


def test_what_is_printed_has_the_form_that_ray_prints() -> None:
    values = {"score": "m", "other": [1], "config": {"a": 1}, "training_iteration": 1, "pid": 3}
    done = Result(values, Checkpoint("/r/t/checkpoint_000000"), None, "/r/t", config={"a": 1})
    assert repr(done) == (
        "Result(\n  metrics={'score': 'm', 'other': [1]},\n  path='/r/t',\n  filesystem='local',\n"
        "  checkpoint=Checkpoint(filesystem=local, path=/r/t/checkpoint_000000)\n)"
    )
    failed = Result(None, None, TrialFailedError("ValueError: no", "t"), "s3://b/t")
    assert repr(failed) == (
        "Result(\n  error='ValueError: no',\n  metrics={},\n  path='s3://b/t',\n  filesystem='s3',\n"
        "  checkpoint=None\n)"
    )


def test_a_printed_grid_shows_each_result(tmp_path: Path) -> None:
    lines = repr(grid(tmp_path, [[1.0], [2.0]], failed=(1,))).splitlines()
    assert lines[0] == "ResultGrid<["
    assert lines[1] == "  Result("
    assert lines.count("  Result(") == 2
    assert "    error='ValueError: no'," in lines
    assert lines[-2:] == ["  )", "]>"]


def test_path_of_an_experiment_in_a_bucket() -> None:
    results = ResultGrid(ExperimentOutcome(name="e", path="/runs/e", uri="s3://bucket/e", state="Succeeded"))
    assert (results.experiment_path, results.local_path) == ("s3://bucket/e", "/runs/e")


def test_best_of_the_last_results(tmp_path: Path) -> None:
    results = grid(tmp_path, [[0.1, 3.0], [5.0, 2.0], [4.0, 4.0]])
    assert best(results) == 1
    assert best(results, mode="max") == 2
    assert best(results, "group/x", "min") == 1
    assert best(results, "config/i", "max") == 2


class TestRareMetric:
    """One that is not in a trial's last result, such as that of a validation every few epochs."""

    def rare(self, tmp_path: Path, **facts: Any) -> ResultGrid:
        accs = [[0.9, 0.5], [0.7, 0.8], []]
        results = grid(tmp_path, [[1.0, 2.0, 3.0]] * 3, **facts)
        for trial, values in zip(results._outcome.trials, accs, strict=True):
            rows = [{"loss": 1.0, "training_iteration": n} for n in range(1, 4)]
            for row, value in zip(rows, values, strict=False):
                row |= {"acc": value, "cost": -value, "deep": {"acc": value}}  # type: ignore[dict-item]
            Path(trial.path, "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            trial.last_result = rows[-1]
        return results

    def test_the_last_value_before_counts(self, tmp_path: Path) -> None:
        results = self.rare(tmp_path)
        assert best(results, "acc", "max") == 1
        assert best(results, "acc", "min") == 0
        assert best(results, "deep/acc", "max") == 1
        assert best(results, "acc", "max", scope="all") == 0

    def test_the_last_complete_point_is_compared(self, tmp_path: Path) -> None:
        front = self.rare(tmp_path).get_pareto_front(
            [{"name": "acc", "mode": "max"}, {"name": "cost", "mode": "max"}]
        )
        assert [result.config for result in front] == [{"i": 1}, {"i": 0}]

    def test_repeats_have_it_too(self, tmp_path: Path) -> None:
        results = self.rare(tmp_path)
        for trial, name in zip(results._outcome.trials, ("a", "ar1", "b"), strict=True):
            trial.trial_id = name
        (found,) = results.get_repeats("acc").values()
        assert found.mean == 0.8

    def test_files_are_read_only_where_it_is_missing(self, tmp_path: Path) -> None:
        results = grid(tmp_path, [[1.0], [2.0]])
        for trial in results._outcome.trials:
            Path(trial.path, "result.json").write_text("not a result\n")
        assert best(results) == 0

    def test_a_file_without_its_name_is_not_parsed(self, tmp_path: Path) -> None:
        results = self.rare(tmp_path)
        Path(results._outcome.trials[2].path, "result.json").write_text("not a result\n")
        assert best(results, "acc", "max") == 1
        with pytest.raises(InvalidInputError, match="no trial reported the metric 'ac'"):
            results.get_best_result("ac", "max")

    @pytest.mark.parametrize("name", ['a"b', "é", "a\\b"])
    def test_its_name_may_be_one_that_json_escapes(self, tmp_path: Path, name: str) -> None:
        results = grid(tmp_path, [[1.0]])
        path = Path(results._outcome.trials[0].path, "result.json")
        path.write_text(json.dumps({name: 1}) + "\n" + json.dumps({"loss": 1}) + "\n")
        assert best(results, name, "max") == 0


def test_scopes(tmp_path: Path) -> None:
    results = grid(tmp_path, [[0.1, 9.0], [4.0, 3.0], [1.0] * 5 + [5.0] * 5])
    assert best(results, scope="all") == 0
    assert best(results, scope="all", mode="max") == 0
    assert best(results, scope="avg") == 2
    assert best(results, scope="last-5-avg") == 1
    assert best(results, scope="last-10-avg") == 2


def test_the_first_of_equals_is_the_best(tmp_path: Path) -> None:
    assert best(grid(tmp_path, [[2.0], [1.0], [1.0]])) == 1


def test_nan_and_infinity_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    results = grid(tmp_path, [[math.nan], [-math.inf], [1.0], []])
    assert best(results) == 2
    assert best(results, filter_nan_and_inf=False) == 1


def test_nan_does_not_void_what_came_before(tmp_path: Path) -> None:
    results = grid(tmp_path, [[2.0], [3.0, 1.0, math.nan, -math.inf], [math.nan]])
    assert best(results) == 1
    assert best(results, scope="all") == 1
    assert best(results, filter_nan_and_inf=False) == 1  # the infinity


def test_failed_trials_can_be_best(tmp_path: Path) -> None:
    assert best(grid(tmp_path, [[2.0], [1.0]], failed=(1,))) == 1


def test_nothing_but_nan_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoResultError, match="NaN or infinite; pass filter_nan_and_inf=False"):
        grid(tmp_path, [[math.nan], [math.nan]]).get_best_result()


def test_under_the_name_ray_the_only_trial_is_best(tmp_path: Path) -> None:
    results = grid(tmp_path, [[math.nan]])
    with pytest.raises(NoResultError, match="NaN or infinite"):
        results.get_best_result("loss", "min")
    compat.install(replace=True)
    try:
        assert best(results, "loss", "min") == 0
        with pytest.raises(InvalidInputError, match="no trial reported the metric 'lost'"):
            results.get_best_result("lost", "min")
    finally:
        compat.uninstall()


def test_unknown_metric_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        grid(tmp_path, [[1.0], [2.0]]).get_best_result("lost", "min")
    assert "no trial reported the metric 'lost'. Did you mean 'loss'?" in str(caught.value)
    assert "Reported: group/x, loss, training_iteration" in str(caught.value)


def test_no_results_at_all_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"none of the 2 trials.*1 of them failed"):
        grid(tmp_path, [[], []], failed=(0,)).get_best_result()


def test_metric_and_mode_are_needed(tmp_path: Path) -> None:
    results = grid(tmp_path, [[1.0], [2.0]], metric=None, mode=None)
    with pytest.raises(ValueError, match="no metric"):
        results.get_best_result()
    with pytest.raises(ValueError, match="no mode"):
        results.get_best_result("loss")
    with pytest.raises(ValueError, match="mode must be"):
        results.get_best_result("loss", "minimum")
    with pytest.raises(ValueError, match="did you mean 'last'"):
        results.get_best_result("loss", "min", scope="lasst")  # type: ignore[arg-type]


def test_the_only_trial_is_the_best_without_a_metric(tmp_path: Path) -> None:
    assert best(grid(tmp_path, [[math.nan]], metric=None, mode=None)) == 0


def test_the_data_frame_has_the_last_results(tmp_path: Path) -> None:
    frame = grid(tmp_path, [[1.0, 2.0], [], [4.0, 3.0]]).get_dataframe()
    assert list(frame["loss"].dropna()) == [2.0, 3.0]
    assert list(frame["config/i"]) == [0, 1, 2]
    assert list(frame["logdir"]) == [str(tmp_path / f"trial_{number}") for number in range(3)]


def test_the_data_frame_can_have_the_best_results(tmp_path: Path) -> None:
    results = grid(tmp_path, [[1.0, 2.0], [math.nan, 3.0, 4.0]])
    assert list(results.get_dataframe("loss", "min")["loss"]) == [1.0, 3.0]
    assert list(results.get_dataframe("loss", "max")["training_iteration"]) == [2, 3]
    assert list(results.get_dataframe("loss")["loss"]) == [1.0, 3.0]


def test_wrong_filters_are_refused(tmp_path: Path) -> None:
    results = grid(tmp_path, [[1.0], [2.0]], mode=None)
    with pytest.raises(ValueError, match="pass filter_metric"):
        results.get_dataframe(filter_mode="max")
    with pytest.raises(ValueError, match="pass filter_mode"):
        results.get_dataframe("loss")
    with pytest.raises(ValueError, match="Did you mean 'loss'"):
        results.get_dataframe("losss", "max")


def test_no_trials_no_best(tmp_path: Path) -> None:
    results = grid(tmp_path, [])
    assert len(results.get_dataframe()) == 0
    with pytest.raises(NoResultError, match="has no trials"):
        results.get_best_result()
