from __future__ import annotations

from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import ConcurrencyLimiter, HyperOptSearch, OptunaSearch, prepare
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("optuna")


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

    def test_it_is_finished_after_the_last_sample_and_goes_on_when_there_are_more(self) -> None:
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


def test_a_batch_is_told_as_a_whole() -> None:
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
