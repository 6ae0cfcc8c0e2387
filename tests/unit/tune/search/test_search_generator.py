from __future__ import annotations

import json
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.search import ConcurrencyLimiter, Repeater, SearchGenerator, as_search_algorithm, prepare
from trialpod.tune.search.optuna import OptunaSearch
from trialpod.tune.search.searcher import Searcher

SPACE = {"x": tune.uniform(0, 1), "nested": {"n": tune.randint(0, 3)}, "constant": 7}


class Counting(Searcher):
    """Suggests 0, 1, 2, ...; what it is told is in `heard`."""

    def __init__(self, most: int = 100, **kw: Any) -> None:
        super().__init__(**kw)
        self.most = most
        self.made = 0
        self.heard: list[Any] = []

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        if self._metric and metric:
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        self.heard.append(spec)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.made >= self.most:
            return self.FINISHED
        self.made += 1
        return {"x": self.made / 100, "nested": {"n": 1}}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.heard.append((trial_id.rpartition("_")[2], result, error))

    def get_state(self) -> dict[str, Any]:
        return {"made": self.made}

    def set_state(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


def _search(searcher: Searcher, num_samples: int = -1) -> Any:
    return prepare(searcher, space=SPACE, num_samples=num_samples, metric="loss", mode="min", seed=3)


class TestSecondExperiment:
    """One object for two experiments: what was learned stays, and the trials of the first are forgotten."""

    def prepared(self, made: Any, seed: int, num_samples: int = 4) -> Any:
        space = {"x": tune.uniform(0, 1)}
        return prepare(made, space=space, num_samples=num_samples, metric="loss", mode="min", seed=seed)

    def ended(self, search: Any) -> list[Any]:
        found = []
        while (suggestion := search.next_suggestion()) is not None:
            search.on_trial_complete(suggestion.trial_id, {"loss": suggestion.config["x"], "training_iteration": 1})
            found.append(suggestion)
        return found

    @pytest.mark.parametrize(
        "make",
        [
            OptunaSearch,
            lambda: ConcurrencyLimiter(OptunaSearch(), 2),
            lambda: ConcurrencyLimiter(OptunaSearch(), 2, batch=True),
            lambda: Repeater(OptunaSearch(), 3),
            lambda: SearchGenerator(OptunaSearch()),
            lambda: SearchGenerator(Repeater(ConcurrencyLimiter(OptunaSearch(), 2), 3)),
        ],
    )
    @pytest.mark.parametrize("ended", [0, 1])
    def test_gets_all_samples_after_an_interruption(self, make: Any, ended: int) -> None:
        made = make()
        first = self.prepared(made, 7)
        earlier = [first.next_suggestion() for _ in range(2)]
        for each in earlier[:ended]:
            first.on_trial_complete(each.trial_id, {"loss": 1.0, "training_iteration": 1})
        later = self.ended(self.prepared(made, 8))
        prefix = later[0].trial_id.partition("_")[0]
        assert [each.trial_id for each in later] == [f"{prefix}_{number:05d}" for number in range(4)]
        assert not earlier[0].trial_id.startswith(prefix)
        assert earlier[-1].config["x"] not in {each.config["x"] for each in later}

    def test_continues_from_its_state_with_ids_of_its_own(self) -> None:
        """Both have the same seed, so their trials have the same ids."""
        searcher = OptunaSearch()
        assert len(self.ended(self.prepared(searcher, 7))) == 4
        search = self.prepared(searcher, 7)
        search.next_suggestion()
        restored = self.prepared(OptunaSearch(), 7)
        restored.set_state(json.loads(json.dumps(search.get_state())))
        later = self.ended(restored)
        assert len(later) == 3
        assert later == self.ended(search)


def test_trials_are_numbered_named_and_completed_with_constants() -> None:
    searcher = Counting()
    search = _search(searcher)
    first, second = search.next_suggestion(), search.next_suggestion()
    assert first.trial_id.endswith("_00000")
    assert second.trial_id.endswith("_00001")
    assert first.config == {"x": 0.01, "nested": {"n": 1}, "constant": 7}
    assert first.tag == "0_n=1,x=0.0100"
    assert searcher.heard == [{"seed": 3}]


def test_an_end_is_reported_once_and_again_after_an_error() -> None:
    searcher = Counting()
    search = _search(searcher)
    ids = [search.next_suggestion().trial_id for _ in range(2)]
    searcher.heard.clear()
    search.on_trial_complete(ids[0], {"loss": 1.0})
    search.on_trial_stopped(ids[0], {"loss": 2.0})
    search.on_trial_complete(ids[1], error=True)
    search.on_trial_stopped(ids[1], {"loss": 3.0})
    search.on_trial_complete("unknown", {"loss": 1.0})
    assert searcher.heard == [
        ("00000", {"loss": 1.0}, False),
        ("00001", None, True),
        ("00001", {"loss": 3.0}, False),
    ]


def test_an_end_is_reported_again_after_a_stop() -> None:
    searcher = Counting()
    search = _search(searcher)
    trial_id = search.next_suggestion().trial_id
    search.on_trial_stopped(trial_id, {"loss": 2.0})
    again = _search(searcher)
    again.set_state(json.loads(json.dumps(search.get_state())))
    searcher.heard.clear()
    again.on_trial_complete(trial_id, {"loss": 1.0})
    again.on_trial_complete(trial_id, {"loss": 0.0})
    assert searcher.heard == [("00000", {"loss": 1.0}, False)]


def test_a_searcher_without_more_ends_the_search() -> None:
    search = _search(Counting(most=1), num_samples=5)
    assert search.next_suggestion() is not None
    assert search.next_suggestion() is None
    assert search.finished
    assert search.total == 1


def test_a_contradicting_metric_is_refused_with_both_values() -> None:
    with pytest.raises(InvalidInputError, match=r"Counting\(metric='other'\) contradicts .* 'loss'"):
        _search(Counting(metric="other", mode="min"))


def test_what_is_no_searcher_is_refused() -> None:
    for wrong in (3, "optuna", Counting):
        with pytest.raises(InvalidInputError, match="search algorithm"):
            as_search_algorithm(wrong)
    with pytest.raises(InvalidInputError, match="must be a Searcher object"):
        SearchGenerator(Counting)  # type: ignore[arg-type]


def test_a_searcher_is_saved_to_a_file_and_restored(tmp_path: Any) -> None:
    one, other = Counting(), Counting()
    one.suggest("a")
    one.save(tmp_path / "state.json")
    other.restore(tmp_path / "state.json")
    assert other.suggest("b") == {"x": 0.02, "nested": {"n": 1}}
    with pytest.raises(InvalidInputError, match="holds no state"):
        other.restore(tmp_path / "missing.json")


class TestSearcherOfAUser:
    """What FLAML's searchers, which were written for Ray, rely on."""

    def test_is_asked_again_while_no_trial_runs(self) -> None:
        """Ray asks until it gets a config, and here at most so often that a searcher without one ends the search."""
        hesitant = Hesitant(3)
        search = _search(hesitant)
        first = search.next_suggestion()
        assert (first.config["x"], hesitant.asked) == (0.01, 4)
        hesitant.hesitates = 10**6
        assert search.next_suggestion() is None
        assert hesitant.asked == 5
        search.on_trial_complete(first.trial_id, {"loss": 1})
        assert search.next_suggestion() is None
        assert hesitant.asked < 200

    def test_sees_the_config_in_results(self) -> None:
        assert _search(Counting()).shows_config
        assert _search(tune.search.ConcurrencyLimiter(Counting(), 2)).shows_config
        assert not _search(OptunaSearch()).shows_config


class Hesitant(Counting):
    """Has nothing to suggest for some calls."""

    def __init__(self, hesitates: int) -> None:
        super().__init__()
        self.hesitates = hesitates
        self.asked = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        self.asked += 1
        self.hesitates -= 1
        return super().suggest(trial_id) if self.hesitates < 0 else None
