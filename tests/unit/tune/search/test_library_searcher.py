from __future__ import annotations

import statistics
from importlib.util import find_spec
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune import search
from trialpod.tune.search.refit_searcher import RefitSearcher
from trialpod.tune.search.sample import uniform


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
