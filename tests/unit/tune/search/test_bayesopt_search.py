from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import BayesOptSearch
from trialpod.tune.search.sample import uniform
from trialpod.tune.search.searcher import Searcher

pytestmark = [
    *needing("bayes_opt", "BayesOptSearch is tested where its library is: pip install bayesian-optimization>=3"),
    pytest.mark.slow,
    pytest.mark.once,
]


class TestBayesOptSearch(SearcherContract):
    steps = 7
    seeds = (0,)
    trials_to_learn = 12
    trials_to_win = 16

    def make(self) -> Searcher:
        return BayesOptSearch(random_search_steps=4, utility_kwargs={"kind": "ei"})


def test_a_loss_too_large_to_square_does_not_end_it() -> None:
    search = BayesOptSearch(random_search_steps=3)
    search.set_search_properties("loss", "min", {"x": uniform(0, 1)}, seed=1)
    for number, loss in enumerate([1.0, 1e200, 2.0, 1.7e308, 0.5]):
        assert isinstance(search.suggest(f"t{number}"), dict)
        search.on_trial_complete(f"t{number}", {"loss": loss, "training_iteration": 1})
    assert isinstance(search.suggest("t5"), dict)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "patience must be"),
        ({"utility_kwargs": {"kind": "ucbb"}}, "Did you mean 'ucb'"),
        ({"utility_kwargs": {"xi": -1, "kind": "ei"}}, "0 or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        BayesOptSearch(**arguments)
