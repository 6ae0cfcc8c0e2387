"""What is as in Ray only under its name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialpod import tune
from trialpod.compat import ray
from trialpod.errors import InvalidInputError
from trialpod.storage.pickled_params import MAX_BYTES, keep_params
from trialpod.tune import schedulers
from trialpod.tune.location.experiment_state import write_state
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.result import TrialDiedError, failure
from trialpod.tune.result_grid import ResultGrid
from trialpod.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from trialpod.tune.search.hyperopt_search import HyperOptSearch
from trialpod.tune.search.optuna import OptunaSearch

ANSWERS = Path(__file__).parents[2] / "data" / "ray_behaviours"


@pytest.fixture
def _under_ray() -> Iterator[None]:
    ray.install(replace=True)
    yield
    ray.uninstall()


def answered(probe: str, behaviour: str) -> Any:
    return json.loads((ANSWERS / "searchers.json").read_text())[probe]["found"][behaviour]


def experiment(folder: Path, values: list[list[float]]) -> ExperimentOutcome:
    trials = []
    for number, series in enumerate(values):
        place = folder / f"t{number}"
        place.mkdir()
        rows = [{"loss": value, "training_iteration": i + 1} for i, value in enumerate(series)]
        (place / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        trials.append(
            TrialOutcome(
                trial_id=f"t{number}", name=f"f_t{number}", config={"x": number}, status="TERMINATED",
                path=str(place), last_result=rows[-1],
            )
        )  # fmt: skip
    return ExperimentOutcome(name="e", path=str(folder), state="Succeeded", metric="loss", mode="min", trials=trials)


class Copies:
    """A syncer of a script's own."""

    def sync_up(self) -> None: ...


class TestSeeds:
    SPACE = {"x": tune.uniform(0, 10), "c": tune.choice(["a", "b"]), "n": {"k": tune.randint(0, 5)}}  # noqa: RUF012

    def suggested(self, search: Any, count: int) -> list[dict[str, Any]]:
        found = []
        for number in range(count):
            config = search.suggest(str(number))
            found.append({**config, "x": round(config["x"], 9)})
            search.on_trial_complete(str(number), {"loss": config["x"] * 2, "training_iteration": 1})
        return found

    def optuna(self) -> OptunaSearch:
        return OptunaSearch(self.SPACE, metric="loss", mode="min", seed=4, compatible=True)

    def test_optuna_suggests_what_ray_does(self) -> None:
        pytest.importorskip("optuna")
        assert self.suggested(self.optuna(), 12) == answered("optuna", "suggestions")

    def test_a_restored_optuna_search_continues_the_same(self) -> None:
        pytest.importorskip("optuna")
        first = self.optuna()
        self.suggested(first, 5)
        again = self.optuna()
        again.set_state(json.loads(json.dumps(first.get_state())))
        assert again.suggest("5") == first.suggest("5")

    def test_hyperopt_suggests_what_ray_does(self) -> None:
        pytest.importorskip("hyperopt")
        search = HyperOptSearch(
            self.SPACE, metric="loss", mode="min", random_state_seed=4, n_initial_points=4, compatible=True
        )
        found = [config["x"] for config in self.suggested(search, 8)]
        assert found == [config["x"] for config in answered("hyperopt", "suggestions")]


@pytest.mark.usefixtures("_under_ray")
class TestUnderItsName:
    def test_arguments_that_ray_takes_are_taken(self) -> None:
        assert tune.RunConfig(verbose=7).verbose == 7
        assert tune.TuneConfig(max_concurrent_trials=-1).max_concurrent_trials == -1
        assert tune.RunConfig(name="a/b").name == "a/b"
        assert tune.grid_search("ab") == {"grid_search": "ab"}
        assert BasicVariantGenerator(max_concurrent=-1).is_finished() is False

    def test_arguments_that_a_scheduler_has_not_are_left_out(self) -> None:
        assert isinstance(schedulers.create_scheduler("fifo", nothing=1), schedulers.FIFOScheduler)

    def test_a_trial_with_nan_is_never_best(self, tmp_path: Path) -> None:
        grid = ResultGrid(experiment(tmp_path, [[1.0, float("nan")], [3.0, 2.0]]))
        assert grid.get_best_result().config == {"x": 1}
        assert grid.get_best_result(scope="all").config == {"x": 1}

    def test_a_hyperband_looks_at_each_result(self) -> None:
        assert not schedulers.HyperBandScheduler(metric="loss", mode="min").supports_buffered_results

    def test_a_sync_config_begins_with_its_upload_dir(self) -> None:
        syncer = Copies()
        assert tune.SyncConfig("s3://b").upload_dir == "s3://b"  # type: ignore[arg-type]
        assert tune.SyncConfig("s3://b", syncer).own_syncer is syncer  # type: ignore[arg-type]
        assert tune.SyncConfig("s3://b", None).sync_timeout == 1800  # type: ignore[arg-type]
        assert tune.SyncConfig(60, 120).upload_dir is None


class TestUnderOurName:
    def test_the_same_arguments_are_refused(self) -> None:
        for call in (
            lambda: tune.RunConfig(verbose=7),
            lambda: tune.TuneConfig(max_concurrent_trials=-1),
            lambda: tune.RunConfig(name="a/b"),
            lambda: tune.grid_search("ab"),
            lambda: schedulers.create_scheduler("fifo", nothing=1),
        ):
            with pytest.raises(InvalidInputError):
                call()

    def test_a_sync_config_says_where_a_place_is_given(self) -> None:
        with pytest.raises(InvalidInputError, match=r"'s3://b'.*seconds; .*RunConfig\(storage_path="):
            tune.SyncConfig("s3://b")  # type: ignore[arg-type]

    def test_a_finite_value_before_nan_counts(self, tmp_path: Path) -> None:
        grid = ResultGrid(experiment(tmp_path, [[1.0, float("nan")], [3.0, 2.0]]))
        assert grid.get_best_result().config == {"x": 0}

    def test_the_limiter_refuses_a_search_algorithm_as_ray_does(self) -> None:
        with pytest.raises(RuntimeError):
            ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=1)  # type: ignore[arg-type]


class TestFiles:
    def test_params_pkl_has_the_values_themselves(self, tmp_path: Path) -> None:
        keep_params(str(tmp_path), {"t": (1, 2), "path": tmp_path})
        assert pickle.loads((tmp_path / "params.pkl").read_bytes()) == {"t": (1, 2), "path": tmp_path}

    def test_large_parameters_have_no_such_file(self, tmp_path: Path) -> None:
        keep_params(str(tmp_path), {"a": np.zeros(MAX_BYTES)})
        assert list(tmp_path.iterdir()) == []

    def test_experiment_state_has_each_trial(self, tmp_path: Path) -> None:
        outcome = experiment(tmp_path, [[1.0], [2.0]])
        outcome.trials[0].config["odd"] = [b"bytes", {1}, tmp_path]
        write_state(outcome, 1000.0, 1010.0)
        (file,) = tmp_path.glob("experiment_state-*.json")
        state = json.loads(file.read_text())
        about = [json.loads(trial) for trial, _ in state["trial_data"]]
        assert [trial["config"]["x"] for trial in about] == [0, 1]
        assert [json.loads(became)["last_result"]["loss"] for _, became in state["trial_data"]] == [1.0, 2.0]


class TestErrors:
    def test_a_process_that_died_is_a_dead_actor(self) -> None:
        from trialpod.compat.ray.exceptions import ActorDiedError, RayActorError

        error = failure("the process ended with exit code 3", "f_1", "", "/nowhere")
        assert isinstance(error, (TrialDiedError, RayActorError, ActorDiedError))
        assert not isinstance(failure("ValueError: no", "f_1", "Traceback ...", "/nowhere"), RayActorError)
