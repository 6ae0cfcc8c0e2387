from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.search import OptunaSearch, Repeater, prepare

pytest.importorskip("optuna")

SPACE = {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}


def _search(repeat: int = 3) -> Any:
    return prepare(
        Repeater(OptunaSearch(), repeat=repeat), space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1
    )


def _study(search: Any) -> Any:
    return search.searcher.searcher.study


def test_each_config_comes_several_times_with_a_number() -> None:
    search = _search()
    configs = [search.next_suggestion().config for _ in range(4)]
    assert [config["__trial_index__"] for config in configs] == [0, 1, 2, 0]
    assert len({config["x"] for config in configs[:3]}) == 1
    assert configs[3]["x"] != configs[0]["x"]


def test_the_searcher_learns_the_mean_of_usable_values() -> None:
    search = _search()
    ids = [search.next_suggestion().trial_id for _ in range(3)]
    search.on_trial_complete(ids[1], {"loss": 2.0})
    search.on_trial_complete(ids[0], {"loss": 4.0})
    assert _study(search).trials[0].state.name == "RUNNING"
    search.on_trial_complete(ids[2], {"loss": math.nan})
    assert _study(search).trials[0].value == 3.0


def test_a_group_without_a_number_failed() -> None:
    search = _search(2)
    ids = [search.next_suggestion().trial_id for _ in range(2)]
    search.on_trial_complete(ids[0], error=True)
    search.on_trial_complete(ids[1], {})
    assert _study(search).trials[0].state.name == "FAIL"


@pytest.mark.parametrize("made", [1, 2, 3, 4])
def test_restored_or_replayed_it_continues_as_it_would_have(made: int) -> None:
    search, replayed, restored = _search(), _search(), _search()
    earlier = [search.next_suggestion() for _ in range(made)]
    search.on_trial_complete(earlier[0].trial_id, {"loss": 1.0})
    for suggestion in earlier:
        replayed.adopt(suggestion)
    replayed.on_trial_complete(earlier[0].trial_id, {"loss": 1.0})
    restored.set_state(json.loads(json.dumps(search.get_state())))
    later = [[each.next_suggestion() for _ in range(4)] for each in (search, replayed, restored)]
    assert later[0] == later[1] == later[2]


def test_repeat_is_a_whole_number_of_at_least_one() -> None:
    with pytest.raises(InvalidInputError, match="repeat must be 1 or more"):
        Repeater(OptunaSearch(), repeat=0)


class TestRungs:
    class Listener(OptunaSearch):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[tuple[str, float, float]] = []

        def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
            self.heard.append((trial_id, rung, result["loss"]))

    def made(self) -> Any:
        inner = Repeater(self.Listener(), repeat=2)
        return prepare(inner, space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1)

    def test_the_mean_is_reported_once_all_have_reached_it(self) -> None:
        search = self.made()
        one, two = (search.next_suggestion().trial_id for _ in range(2))
        search.on_trial_rung(two, 3, {"loss": 4.0})
        search.on_trial_rung(two, 9, {"loss": 3.0})
        assert search.searcher.searcher.heard == []
        search.on_trial_rung(one, 3, {"loss": 2.0})
        assert search.searcher.searcher.heard == [(one, 3, 3.0)]

    def test_a_restored_one_knows_who_reached_it(self) -> None:
        search, restored = self.made(), self.made()
        one, two = (search.next_suggestion().trial_id for _ in range(2))
        search.on_trial_rung(one, 3, {"loss": 2.0})
        restored.set_state(json.loads(json.dumps(search.get_state())))
        restored.on_trial_rung(two, 3, {"loss": 4.0})
        assert restored.searcher.searcher.heard == [(one, 3, 3.0)]
