from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import NevergradSearch
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("nevergrad", reason="NevergradSearch is tested where its library is: pip install nevergrad")


class TestNevergradSearch(SearcherContract):
    trials_to_learn = 0  # in so few trials an evolution has hardly begun

    def make(self) -> Searcher:
        return NevergradSearch(optimizer="DE", optimizer_kwargs={"budget": 100, "num_workers": 4})


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
