from __future__ import annotations

import enum
import json
import math
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.protocol.values import params_encoder, results_decoder
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import BasicVariantGenerator, ConcurrencyLimiter, HyperOptSearch, OptunaSearch, prepare
from trialpod.tune.search.searcher import Searcher

pytestmark = pytest.mark.once

pytest.importorskip("optuna")


class Level(enum.IntEnum):
    HIGH = 2


def _search(limiter: Searcher) -> Any:
    return prepare(limiter, space={"x": tune.uniform(0, 1)}, num_samples=-1, metric="loss", mode="min", seed=1)


class TestLimited(SearcherContract):
    trials_to_learn = 0

    def make(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(), max_concurrent=3)


class TestBatches(SearcherContract):
    trials_to_learn = 0

    def make(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(), max_concurrent=3, batch=True)

    def test_unknown_and_ended_trials_are_ignored(self) -> None:
        """One trial alone is no batch."""

    def test_results_without_a_usable_number_neither_raise_nor_block(self) -> None:
        """One trial alone is no batch."""

    def test_finished_until_samples_are_added(self) -> None:
        """One trial alone is no batch."""


def test_so_many_trials_are_unfinished_and_no_more() -> None:
    search = _search(ConcurrencyLimiter(OptunaSearch(), max_concurrent=2))
    first, second = search.next_suggestion(), search.next_suggestion()
    assert search.next_suggestion() is None
    assert not search.finished
    search.on_trial_complete(first.trial_id, {"loss": 1.0})
    assert search.next_suggestion() is not None
    search.on_trial_stopped(second.trial_id, {"loss": 1.0})
    assert search.next_suggestion() is not None


def test_a_batch_is_reported_as_a_whole() -> None:
    limiter = ConcurrencyLimiter(OptunaSearch(), max_concurrent=2, batch=True)
    search = _search(limiter)
    ids = [search.next_suggestion().trial_id for _ in range(2)]
    search.on_trial_complete(ids[0], {"loss": 1.0})
    assert search.next_suggestion() is None
    assert [t.state.name for t in limiter.searcher.study.trials] == ["RUNNING", "RUNNING"]  # type: ignore[attr-defined]
    search.on_trial_stopped(ids[1], {"loss": 2.0})
    assert [t.state.name for t in limiter.searcher.study.trials] == ["COMPLETE", "PRUNED"]  # type: ignore[attr-defined]
    assert search.next_suggestion() is not None


@pytest.mark.parametrize("most", [0, -1, True, "2"])
def test_a_limit_is_a_whole_number_of_at_least_one(most: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_concurrent must be 1 or more"):
        ConcurrencyLimiter(OptunaSearch(), max_concurrent=most)
    with pytest.raises(InvalidInputError, match="must be a Searcher object"):
        ConcurrencyLimiter(HyperOptSearch, max_concurrent=1)  # type: ignore[arg-type]


def test_random_search_is_limited_by_the_experiment() -> None:
    with pytest.raises(InvalidInputError, match=r"leave the limiter out and use TuneConfig\(max_concurrent_trials"):
        ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=2)  # type: ignore[arg-type]


class TestBatchState:
    """What a batch has kept back arrives after a restart as it was reported."""

    class Recorder(Searcher):
        def __init__(self) -> None:
            super().__init__("loss", "min")
            self.heard: dict[str, Any] = {}

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"x": 1}

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            self.heard[trial_id] = result

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass

    def test_objects_in_results_survive(self) -> None:
        limiter = ConcurrencyLimiter(self.Recorder(), max_concurrent=2, batch=True)
        limiter.suggest("a"), limiter.suggest("b")
        reported = results_decoder.decode(
            params_encoder.encode({"loss": Level.HIGH, "shape": (2, 3), "path": Path("x"), "nan": math.nan})
        )
        limiter.on_trial_complete("a", reported)
        state = json.loads(json.dumps(limiter.get_state()))

        recorder = self.Recorder()
        again = ConcurrencyLimiter(recorder, max_concurrent=2, batch=True)
        again.set_state(state)
        again.on_trial_complete("b", {"loss": 1})
        heard = recorder.heard["a"]
        assert (heard["loss"], heard["shape"], heard["path"]) == (2, (2, 3), Path("x"))
        assert math.isnan(heard["nan"])
        assert params_encoder.encode(heard) == params_encoder.encode(reported)


class TestBatchRetries:
    """A trial of a batch fails, and the experiment resumes it while others of the batch still run."""

    class Recorder(TestBatchState.Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[tuple[str, str]] = []

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            super().on_trial_complete(trial_id, result, error)
            self.ends.append((trial_id, "error" if error else "complete"))

    @pytest.fixture
    def recorder(self) -> Recorder:
        return self.Recorder()

    @pytest.fixture
    def limiter(self, recorder: Recorder) -> ConcurrencyLimiter:
        limiter = ConcurrencyLimiter(recorder, max_concurrent=2, batch=True)
        limiter.suggest("a"), limiter.suggest("b")
        limiter.on_trial_complete("a", error=True)
        again = ConcurrencyLimiter(recorder, max_concurrent=2, batch=True)
        again.set_state(json.loads(json.dumps(limiter.get_state())))
        return again

    def test_success_replaces_the_failure(self, recorder: Recorder, limiter: ConcurrencyLimiter) -> None:
        limiter.on_trial_complete("a", {"loss": 1.0})
        limiter.on_trial_complete("b", {"loss": 2.0})
        assert recorder.ends == [("a", "complete"), ("b", "complete")]

    def test_success_replaces_a_stop(self, recorder: Recorder, limiter: ConcurrencyLimiter) -> None:
        limiter.on_trial_stopped("a", {"loss": 3.0})
        limiter.on_trial_complete("a", {"loss": 1.0})
        limiter.on_trial_stopped("b", {"loss": 4.0})
        limiter.on_trial_complete("b", {"loss": 2.0})
        limiter.on_trial_complete("b", {"loss": 0.0})
        assert recorder.heard == {"a": {"loss": 1.0}, "b": {"loss": 2.0}}

    def test_success_after_the_batch_comes_last(self, recorder: Recorder, limiter: ConcurrencyLimiter) -> None:
        limiter.on_trial_complete("b", {"loss": 2.0})
        limiter.on_trial_complete("a", {"loss": 1.0})
        assert recorder.ends == [("a", "error"), ("b", "complete"), ("a", "complete")]
