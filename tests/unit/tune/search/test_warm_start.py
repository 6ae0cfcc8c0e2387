from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune import ExperimentAnalysis
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.result import Result, TrialFailedError
from trialpod.tune.search import AutoSearch, ConcurrencyLimiter, OptunaSearch, prepare
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("optuna")

SPACE = {"x": tune.uniform(0, 1)}


def _experiment(folder: Path) -> Path:
    (folder / ".trialpod").mkdir(parents=True)
    (folder / ".trialpod" / "experiment.json").write_text('{"version": 1, "name": "early"}')
    rows: list[tuple[str, list[Any]]] = [
        ("a", [{"loss": 5.0, "config": {"x": 0.1}}, {"loss": 1.0, "config": {"x": 0.1}}]),
        ("b", [{"loss": 2.0, "config": {"x": 0.9}}]),
        ("c", [{"other": 2.0, "config": {"x": 0.9}}]),
        ("d", [{"loss": 2.0, "config": {"x": 7.0}}]),
    ]
    for name, results in rows:
        (folder / name).mkdir()
        (folder / name / "result.json").write_text("".join(json.dumps(row) + "\n" for row in results) + '{"los')
    return folder


def _search(searcher: Searcher) -> Any:
    return prepare(searcher, space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1)


def test_last_results_that_fit_count(tmp_path: Path) -> None:
    place = _experiment(tmp_path / "early")
    search = _search(OptunaSearch(warm_start=str(place)))
    assert [t.value for t in search.searcher.study.trials] == [1.0, 2.0]
    added = _search(OptunaSearch())
    assert added.searcher.add_evaluated_experiment(place) == 2
    assert [t.params["x"] for t in added.searcher.study.trials] == [0.1, 0.9]


def test_read_once_at_the_first_suggestion(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    search = _search(OptunaSearch(warm_start=str(missing)))
    with pytest.raises(InvalidInputError, match="there is no experiment at"):
        search.next_suggestion()
    place = _experiment(tmp_path / "early")
    first = _search(OptunaSearch(warm_start=str(place)))
    first.next_suggestion()
    state = json.loads(json.dumps(first.get_state()))
    (place / ".trialpod" / "experiment.json").unlink()
    again = _search(OptunaSearch(warm_start=str(place)))
    again.set_state(state)
    assert again.next_suggestion() == first.next_suggestion()


def test_results_of_a_tuner_can_be_given() -> None:
    search = _search(OptunaSearch())
    results = [Result({"loss": 3.0}, None, None, "", config={"x": 0.5}), Result(None, None, None, "")]
    assert search.searcher.add_evaluated_trials(results) == 1
    assert search.searcher.study.best_value == 3.0


def test_points_before_the_space_is_known() -> None:
    searcher = OptunaSearch()
    searcher.add_evaluated_point({"x": 0.5}, 3.0)
    searcher.add_evaluated_point({"x": 0.6}, 2.0, pruned=True, intermediate_values=[4.0, 3.0])
    searcher.add_evaluated_point({"x": 0.7}, None, error=True)
    assert [t.state.name for t in _search(searcher).searcher.study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    with pytest.raises(InvalidInputError, match="is not the value of 'loss'"):
        searcher.add_evaluated_point({"x": 0.5}, "3")


class TestTrialsBeforeTheSpaceIsKnown:
    """A script gives them to a search before `fit`; some are outside of the space of the new experiment."""

    @pytest.mark.parametrize("make", [OptunaSearch, AutoSearch, lambda: ConcurrencyLimiter(OptunaSearch(), 2)])
    def test_those_outside_are_left_out(self, make: Any, caplog: pytest.LogCaptureFixture) -> None:
        searcher = make()
        results = [Result({"loss": x}, None, None, "", config={"x": x}) for x in (0.5, 7.0, 0.25)]
        results.append(Result({"other": 1.0}, None, None, "", config={"x": 0.5}))
        assert searcher.add_evaluated_trials(results, "loss") == 3
        search = _search(searcher)
        assert search.next_suggestion() is not None
        assert caplog.text.count("2 of 4 trials have the metric loss and a config of this search space") == 1
        added = [entry for entry in getattr(searcher, "searcher", searcher).get_state()["log"] if entry[0] == "add"]
        assert [entry[3] for entry in added] == [[0.5], [0.25]]

    def test_of_a_folder_too(self, tmp_path: Path) -> None:
        searcher = OptunaSearch()
        assert searcher.add_evaluated_experiment(_experiment(tmp_path / "early")) == 4
        search = _search(searcher)
        search.next_suggestion()
        assert [t.value for t in searcher.study.trials] == [1.0, 2.0, None]

    def test_they_survive_copies_and_restarts(self) -> None:
        searcher, restored = OptunaSearch(), OptunaSearch()
        for each in (searcher, restored):
            each.add_evaluated_trials([Result({"loss": 0.5}, None, None, "", config={"x": 0.5})], "loss")
        search = _search(pickle.loads(pickle.dumps(searcher)))
        again = _search(restored)
        again.set_state(json.loads(json.dumps(search.get_state())))
        assert again.next_suggestion() == search.next_suggestion()
        last = _search(restored)
        last.set_state(json.loads(json.dumps(search.get_state())))
        assert last.next_suggestion() == search.next_suggestion()
        assert [t.value for t in last.searcher.study.trials] == [0.5, None, None]

    def test_the_seed_of_the_experiment_counts(self) -> None:
        searcher = OptunaSearch(SPACE, metric="loss", mode="min")
        searcher.add_evaluated_trials([Result({"loss": 0.5}, None, None, "", config={"x": 0.5})])
        assert _search(searcher).searcher.seed == 1


def test_trials_of_an_analysis_can_be_given() -> None:
    """What `tune.run` returns; a trial that failed counts as failed, whatever it had reported."""
    trials = [
        TrialOutcome(
            trial_id=str(number), name=f"t_{number}", config={"x": x}, status=status, path="", last_result=result
        )
        for number, (x, status, result) in enumerate(
            [(0.5, "TERMINATED", {"loss": 3.0}), (0.25, "ERROR", {"loss": -9.0}), (0.75, "TERMINATED", None)]
        )
    ]
    analysis = ExperimentAnalysis(ExperimentOutcome(name="e", path="", state="Succeeded", trials=trials))
    search = _search(OptunaSearch())
    assert search.searcher.add_evaluated_trials(analysis, "loss") == 2
    assert search.searcher.add_evaluated_trials(analysis.trials) == 2
    assert [t.state.name for t in search.searcher.study.trials] == ["COMPLETE", "FAIL"] * 2
    assert search.searcher.study.best_value == 3.0


def test_failed_results_count_as_failed() -> None:
    results = [
        Result({"loss": loss}, None, error, "", config={"x": 0.5})
        for loss, error in ((3.0, None), (-9.0, TrialFailedError("no memory left")))
    ]
    search = _search(OptunaSearch())
    assert search.searcher.add_evaluated_trials(results) == 2
    assert [t.state.name for t in search.searcher.study.trials] == ["COMPLETE", "FAIL"]


def test_trials_that_lack_a_parameter_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def space(trial: Any) -> None:
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("new", 0, 1)

    searcher = OptunaSearch(space, metric="loss", mode="min")
    results = [Result({"loss": 3.0}, None, None, "", config=config) for config in ({"x": 0.5}, {"x": 0.5, "new": 1})]
    search = prepare(searcher, space={}, num_samples=-1, metric="loss", mode="min", seed=1)
    assert searcher.add_evaluated_trials(results) == 1
    assert "1 of 2 trials have the metric loss and a config of this search space" in caplog.text
    assert search.next_suggestion() is not None
