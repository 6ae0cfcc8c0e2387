from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import TuneBOHB
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
