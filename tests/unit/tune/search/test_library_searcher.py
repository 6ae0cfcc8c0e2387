from __future__ import annotations

import random
import statistics
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune import search
from trialpod.tune.search.refit_searcher import RefitSearcher
from trialpod.tune.search.sample import choice, randint, sample_from, uniform
from trialpod.tune.search.spaces.flat_space import FlatSpace


class TestMaxConcurrent:
    """Ray's older form: the searcher itself limits how many trials are unfinished."""

    @pytest.mark.parametrize(
        ("cls", "library"),
        [
            ("HyperOptSearch", "hyperopt"),
            ("BayesOptSearch", "bayes_opt"),
            ("NevergradSearch", "nevergrad"),
            ("TuneBOHB", "hpbandster"),
        ],
    )
    def test_waits_until_a_trial_has_ended(self, cls: str, library: str) -> None:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        made = getattr(search, cls)(space={"x": uniform(0, 1)}, metric="loss", mode="min", max_concurrent=2)
        made.set_search_properties(None, None, {}, seed=1)
        assert made.suggest("a")
        assert made.suggest("b")
        assert made.suggest("c") is None
        made.on_trial_complete("a", {"loss": 1.0, "training_iteration": 1})
        again = getattr(search, cls)(space={"x": uniform(0, 1)}, metric="loss", mode="min", max_concurrent=2)
        again.set_search_properties(None, None, {}, seed=1)
        again.set_state(made.get_state())
        for each in (made, again):
            assert each.suggest("c")
            assert each.suggest("d") is None

    def test_refuses_what_is_no_number(self) -> None:
        pytest.importorskip("hyperopt")
        with pytest.raises(InvalidInputError, match="max_concurrent must be 0"):
            search.HyperOptSearch(max_concurrent=-1)


class Model(RefitSearcher):
    """Normalises losses by their variance, as Gaussian processes do."""

    initial = 2

    def _propose(
        self, points: list[dict[str, Any]], losses: list[float], pending: list[dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        assert statistics.pvariance(losses) < float("inf")
        return points[losses.index(min(losses))]


@pytest.mark.parametrize("diverged", [1e200, -1e200, 1.7e308])
def test_models_get_losses_that_can_be_squared(diverged: float) -> None:
    made = Model()
    made.set_search_properties("loss", "min", {"x": uniform(0, 1)}, seed=1)
    for number, loss in enumerate([1.0, diverged, diverged, 2.0]):
        assert isinstance(made.suggest(f"t{number}"), dict)
        made.on_trial_complete(f"t{number}", {"loss": loss, "training_iteration": 1})
    assert isinstance(made.suggest("t4"), dict)


class TestOptionsWithTheSameValues:
    """A config does not say which option of a choice it came from; a restart computes that again."""

    SPACES: ClassVar[dict[str, dict[str, Any]]] = {
        "overlap": {"model": choice([{"units": randint(1, 64)}, {"units": randint(32, 512)}])},
        "functions": {"model": choice([sample_from(lambda: 1), sample_from(lambda: 2)]), "x": uniform(0, 1)},
        "twice": {"model": choice(["a", "a", "b"]), "x": uniform(0, 1)},
    }
    SEARCHERS = pytest.mark.parametrize(
        ("cls", "library"),
        [
            ("AutoSearch", "math"),
            ("OptunaSearch", "optuna"),
            ("HyperOptSearch", "hyperopt"),
            ("NevergradSearch", "nevergrad"),
        ],
    )

    def made(self, name: str, cls: str, seed: int, **arguments: Any) -> Any:
        searcher = getattr(search, cls)(**arguments)
        return search.prepare(searcher, space=self.SPACES[name], num_samples=-1, metric="loss", mode="min", seed=seed)

    def run(self, name: str, cls: str, library: str, seed: int, **arguments: Any) -> tuple[Any, list[Any]]:
        """Return two searches of the same trials: one that suggested them, and one that took them over."""
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        live, again = (self.made(name, cls, each, **arguments) for each in (1, seed))
        configs = []
        for number in range(15):
            suggestion = live.next_suggestion()
            again.adopt(suggestion)
            configs.append(suggestion.config)
            for each in (live, again):
                each.on_trial_complete(suggestion.trial_id, {"loss": (number * 7 % 5) / 5, "training_iteration": 1})
        return (live, again), configs

    @SEARCHERS
    @pytest.mark.parametrize("name", SPACES)
    def test_restart_attributes_results_to_the_same(self, name: str, cls: str, library: str) -> None:
        (live, again), _ = self.run(name, cls, library, seed=1)
        assert again.searcher.get_state()["log"] == live.searcher.get_state()["log"]
        assert [again.next_suggestion() for _ in range(3)] == [live.next_suggestion() for _ in range(3)]

    def test_points_to_evaluate_are_drawn_again(self) -> None:
        points = [{"x": share / 10} for share in range(10)]
        (live, again), _ = self.run("twice", "OptunaSearch", "optuna", seed=1, points_to_evaluate=points)
        assert again.searcher.get_state()["log"] == live.searcher.get_state()["log"]

    @SEARCHERS
    @pytest.mark.parametrize("name", SPACES)
    def test_one_that_computes_another_takes_the_first(self, name: str, cls: str, library: str) -> None:
        (_, again), configs = self.run(name, cls, library, seed=2)
        flat = FlatSpace(self.SPACES[name], "the test")
        asked = [entry[2] for entry in again.searcher.get_state()["log"] if entry[0] == "ask"]
        assert [flat.encode(flat.build(values, random.Random(0))[0]) for values in asked] == list(
            map(flat.encode, configs)
        )
        rebuilt = self.made(name, cls, seed=2)
        rebuilt.set_state(again.get_state())
        assert [again.next_suggestion() for _ in range(3)] == [rebuilt.next_suggestion() for _ in range(3)]
