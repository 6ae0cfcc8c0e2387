from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import BayesOptSearch
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
