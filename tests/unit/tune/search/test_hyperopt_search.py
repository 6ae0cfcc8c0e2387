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

    @pytest.mark.parametrize(("value", "expected"), [("tanh", "tanh"), (0, "relu"), ((3, 3), (3, 3))])
    def test_points_have_values_or_numbers_of_choices(self, value: Any, expected: Any) -> None:
        """As in Ray since 1.2, and by number as before that."""
        hp = pytest.importorskip("hyperopt").hp
        searcher = HyperOptSearch(
            {"act": hp.choice("act", ["relu", "tanh", (3, 3)]), "lr": hp.uniform("lr", 0, 1)},
            metric="loss",
            mode="min",
            points_to_evaluate=[{"act": value, "lr": 0.5}],
        )
        assert searcher.suggest("a") == {"act": expected, "lr": 0.5}

    def test_point_outside_of_a_choice_is_refused(self) -> None:
        hp = pytest.importorskip("hyperopt").hp
        searcher = HyperOptSearch(
            {"n": hp.choice("n", [2, 4])}, metric="loss", mode="min", points_to_evaluate=[{"n": 4}, {"n": 5}]
        )
        assert searcher.suggest("a") == {"n": 4}
        with pytest.raises(InvalidInputError, match=r"'n' cannot be 5; it is one of \[2, 4\]"):
            searcher.suggest("b")

    def test_labels_that_a_point_leaves_out_are_drawn(self) -> None:
        searcher = self.searcher(
            points_to_evaluate=[{"width": 4.0}, {"activation": 0}, {"activation": 1, "slope": 1.5}]
        )
        first, second, third = (searcher.suggest(name) or {} for name in "abc")
        assert first["width"] == 4.0
        assert first["units"] in range(5)
        assert 1 <= second["activation"]["slope"] <= 2
        assert third["activation"] == {"name": "tanh"}
        assert searcher.suggest("d") is not None

    def test_options_with_parameters_are_given_by_number(self) -> None:
        searcher = self.searcher(points_to_evaluate=[{"activation": {"name": "relu", "slope": 1.5}}])
        with pytest.raises(InvalidInputError, match="it is a number of an option, 0 to 1"):
            searcher.suggest("a")

    def test_evaluated_points_have_all_labels(self) -> None:
        searcher = self.searcher()
        with pytest.raises(InvalidInputError, match="the label 'slope' is missing"):
            searcher.add_evaluated_point({"activation": 0, "width": 1.0, "units": 2}, 1.0)
        searcher.add_evaluated_point({"activation": 1, "width": 1.0, "units": 2}, 1.0)

    @pytest.mark.parametrize("points", [None, [{"width": 1.0}]])
    def test_adopted_suggestions_are_as_if_made_again(self, points: Any) -> None:
        """A replay after a kill knows the configs, which do not have the labels in them."""
        made, replayed = (self.searcher(n_initial_points=3, points_to_evaluate=points) for _ in range(2))
        for number in range(8):
            config = made.suggest(f"t{number}")
            assert isinstance(config, dict)
            replayed.adopt(f"t{number}", config)
            for searcher in (made, replayed):
                searcher.on_trial_complete(f"t{number}", {"loss": config["width"]})
        assert replayed.get_state() == made.get_state()
        assert replayed.suggest("next") == made.suggest("next")

    def test_continue_with_the_same_suggestions(self) -> None:
        one, other = self.searcher(), self.searcher()
        for number in range(4):
            one.on_trial_complete(f"t{number}", {"loss": (one.suggest(f"t{number}") or {})["width"]})
        other.set_state(one.get_state())
        assert other.suggest("next") == one.suggest("next")
