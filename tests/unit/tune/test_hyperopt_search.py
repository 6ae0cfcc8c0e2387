from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import HyperOptSearch
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("hyperopt", reason="HyperOptSearch is tested where its library is: pip install hyperopt")


class TestHyperOptSearch(SearcherContract):
    trials_to_win = 100

    def make(self) -> Searcher:
        return HyperOptSearch(n_initial_points=10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 1.5}, "gamma must be between"),
        ({"n_initial_points": 0}, "n_initial_points must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        HyperOptSearch(**arguments)
