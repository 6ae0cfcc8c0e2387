from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import AxSearch
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("ax", reason="AxSearch is tested where its library is: pip install ax-platform")


class TestAxSearch(SearcherContract):
    steps = 6
    seeds = (0,)
    trials_to_learn = 16
    trials_to_win = 16

    def make(self) -> Searcher:
        return AxSearch(initial=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 0}, "initial must be"),
        ({"parameter_constraints": "x"}, "must be a list"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        AxSearch(**arguments)
