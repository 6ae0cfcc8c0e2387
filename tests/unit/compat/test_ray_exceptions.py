"""What is refused is caught by code that catches what Ray raises for it, and is bad input in the own tree as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.compat.ray import exceptions
from trialpod.errors import InvalidInputError
from trialpod.tune.search import Searcher
from trialpod.tune.search.optuna import OptunaSearch
from trialpod.tune.stopper import FunctionStopper


def _train(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": 1}


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "call"),
        [
            pytest.param(TypeError, lambda path: FunctionStopper(5), id="stopper-of-a-number"),  # type: ignore[arg-type]
            pytest.param(TypeError, lambda path: tune.Checkpoint(), id="checkpoint-of-nothing"),
            pytest.param(FileNotFoundError, lambda path: tune.Tuner.restore(path / "no", _train), id="restore"),
            pytest.param(RuntimeError, lambda path: tune.Tuner(_train).get_results(), id="results-before-fit"),
            pytest.param(RuntimeError, lambda path: tune.Result.from_path(path), id="result-of-another-folder"),
            pytest.param(
                NotImplementedError, lambda path: Searcher().add_evaluated_point({"x": 1}, 2), id="point-of-a-base"
            ),
            pytest.param(
                RuntimeError, lambda path: OptunaSearch({"x": tune.uniform(0, 1)}).suggest("a"), id="no-metric"
            ),
            pytest.param(
                RuntimeError, lambda path: OptunaSearch(metric="a", mode="min").suggest("a"), id="no-search-space"
            ),
        ],
    )
    def test_are_caught_as_in_ray(self, kind: type[Exception], call: Callable[[Path], Any], tmp_path: Path) -> None:
        with pytest.raises(kind) as caught:
            call(tmp_path)
        assert isinstance(caught.value, InvalidInputError)
        assert len(str(caught.value)) > 10


class TestReporters:
    def test_take_the_goal_of_the_experiment_once(self) -> None:
        reporter = tune.CLIReporter()
        assert reporter.set_search_properties("loss", "min")
        with pytest.raises(ValueError, match="give one of them"):
            reporter.set_search_properties("loss", "min")


class TestExperiments:
    def test_say_what_they_were_given(self) -> None:
        tune.register_trainable("exceptions_train", _train)
        experiment = tune.Experiment("e", "exceptions_train", num_samples=2, storage_path="/tmp/results")
        assert experiment.spec["run"] == experiment.run_identifier == "exceptions_train"
        assert experiment.public_spec == {"stop": None, "num_samples": 2, "time_budget_s": None}
        assert experiment.remote_path == "/tmp/results/e"

    def test_keep_the_name_of_a_function_with_parameters(self) -> None:
        def scaled(config: dict[str, Any], factor: float) -> dict[str, Any]:
            return {"loss": factor}

        assert tune.with_parameters(scaled, factor=2).__name__ == "scaled"


class TestNames:
    def test_of_ray_stand_for_own_classes(self) -> None:
        from trialpod.errors import TrialpodError
        from trialpod.tune.result import TrialFailedError

        assert exceptions.TuneError is TrialpodError
        assert exceptions.RayTaskError is TrialFailedError
        assert issubclass(exceptions.RayTaskError, exceptions.RayError)
        assert issubclass(exceptions.GetTimeoutError, exceptions.RayError)
