from __future__ import annotations

from typing import Any

import pytest
from libraries import needing

from trialpod.errors import InvalidInputError
from trialpod.testing.searchers import SearcherContract
from trialpod.tune.search import HyperOptSearch
from trialpod.tune.search.searcher import Searcher

pytestmark = needing("hyperopt", "HyperOptSearch is tested where its library is: pip install hyperopt")


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


class TestSpacesOfHyperOptsOwn:
    """As Ray's documentation shows them for conditional spaces: ``hp`` objects, configs by their labels."""

    def searcher(self, **arguments: Any) -> HyperOptSearch:
        hp = pytest.importorskip("hyperopt").hp
        space = {
            "activation": hp.choice(
                "activation", [{"name": "relu", "slope": hp.uniform("slope", 1, 2)}, {"name": "tanh"}]
            ),
            "width": hp.uniform("width", 0, 20),
            "units": hp.randint("units", 5),
        }
        return HyperOptSearch(space, metric="loss", mode="min", random_state_seed=3, **arguments)

    def test_are_searched_with_what_is_active(self) -> None:
        searcher = self.searcher(n_initial_points=3)
        names = set()
        for number in range(30):
            config = searcher.suggest(f"t{number}")
            assert config is not None
            names.add(config["activation"]["name"])
            assert ("slope" in config["activation"]) == (config["activation"]["name"] == "relu")
            assert 0 <= config["width"] <= 20
            assert 0 <= config["units"] < 5
            searcher.on_trial_complete(f"t{number}", {"loss": config["width"]})
        assert names == {"relu", "tanh"}

    def test_begin_with_points_by_label(self) -> None:
        searcher = self.searcher(points_to_evaluate=[{"activation": 1, "width": 4.0, "units": 2}])
        assert searcher.suggest("a") == {"activation": {"name": "tanh"}, "width": 4.0, "units": 2}
        with pytest.raises(InvalidInputError, match="has no label 'wdth'"):
            self.searcher(points_to_evaluate=[{"wdth": 4.0}]).suggest("a")

    def test_continue_with_the_same_suggestions(self) -> None:
        one, other = self.searcher(), self.searcher()
        for number in range(4):
            one.on_trial_complete(f"t{number}", {"loss": (one.suggest(f"t{number}") or {})["width"]})
        other.set_state(one.get_state())
        assert other.suggest("next") == one.suggest("next")
