from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import HEBOSearch
from trialpod.tune.search.searcher import Searcher

pytest.importorskip("hebo", reason="HEBOSearch is tested where its library is: pip install HEBO")


class TestHEBOSearch(SearcherContract):
    steps = 6
    seeds = (0,)
    trials_to_learn = 16
    trials_to_win = 24  # at 16, half of the seeds have found nothing better than chance

    def make(self) -> Searcher:
        return HEBOSearch(initial=4, max_concurrent=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 1}, "initial must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        HEBOSearch(**arguments)
