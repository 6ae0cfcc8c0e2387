from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import ConcurrencyLimiter, TuneBOHB
from trialpod.tune.search.searcher import Searcher

pytestmark = [
    *needing("hpbandster", "TuneBOHB is tested where its library is: pip install hpbandster ConfigSpace"),
    pytest.mark.slow,
    pytest.mark.once,
]


class TestBOHB(SearcherContract):
    trials_to_win = 60
    seeds_to_win = (0, 1, 2)  # it may stay where its first good points were

    def make(self) -> Searcher:
        return TuneBOHB(bohb_config={"random_fraction": 0.1, "num_samples": 16})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bohb_config": {"num_sample": 1}}, "Did you mean 'num_samples'"),
        ({"bohb_config": {"num_samples": 10**9}}, "num_samples of bohb_config must be at most 100000"),
        ({"max_concurrent": -1}, "max_concurrent must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        TuneBOHB(**arguments)


def begun(**arguments: Any) -> TuneBOHB:
    search = TuneBOHB(**arguments)
    search.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, seed=1)
    return search


class TestPausedTrials:
    def test_do_not_count_towards_its_limit(self) -> None:
        search = begun(max_concurrent=1)
        assert isinstance(search.suggest("a"), dict)
        assert search.suggest("b") is None
        search.on_pause("a")
        again = begun(max_concurrent=1)
        again.set_state(search.get_state())
        for each in (search, again):
            assert isinstance(each.suggest("b"), dict)
            assert each.suggest("c") is None

    def test_limit_of_a_wrapper_is_its_own(self) -> None:
        limited = ConcurrencyLimiter(begun(), max_concurrent=1)
        assert isinstance(limited.suggest("a"), dict)
        limited.on_pause("a")
        assert isinstance(limited.suggest("b"), dict)

    def test_that_are_given_up_are_learned_once(self) -> None:
        search = begun()
        search.suggest("a")
        result = {"loss": 0.5, "training_iteration": 3}
        search.on_trial_result("a", result)
        search.on_pause("a")
        search.on_trial_stopped("a", result)
        assert [len(found) for found in search._model.configs.values()] == [1]
