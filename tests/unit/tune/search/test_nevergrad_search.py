from __future__ import annotations

import sys
from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import NevergradSearch
from trialpod.tune.search.searcher import Searcher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    *needing("nevergrad", "NevergradSearch is tested where its library is: pip install nevergrad"),
]


class TestNGOpt(SearcherContract):
    steps = 10
    seeds = (0,)
    trials_to_win = 100

    def make(self) -> Searcher:
        return NevergradSearch(optimizer_kwargs={"budget": 400})


class TestDifferentialEvolution(SearcherContract):
    trials_to_learn = 100
    trials_to_win = 200  # its first 30 are spread out

    def make(self) -> Searcher:
        return NevergradSearch(optimizer="DE", optimizer_kwargs={"budget": 200, "num_workers": 4})


def test_works_beside_a_new_bayesian_optimization() -> None:
    before = pytest.importorskip("bayes_opt")
    NevergradSearch()
    assert sys.modules["bayes_opt"] is before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "NGOptt"}, "Did you mean"),
        ({"optimizer_kwargs": {"budgt": 1}}, "takes budget"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        NevergradSearch(**arguments)
