from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import ZOOptSearch
from trialpod.tune.search.searcher import Searcher

pytestmark = needing("zoopt", "ZOOptSearch is tested where its library is: pip install zoopt")


class TestZOOptSearch(SearcherContract):
    trials_to_learn = 60

    def make(self) -> Searcher:
        return ZOOptSearch(budget=60, parallel_num=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 3}, "budget must be 4"),
        ({"algo": "racos"}, "algo must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ZOOptSearch(**arguments)
