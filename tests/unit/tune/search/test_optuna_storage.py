"""What a sampler is shown of many trials: the best ones, a steady sample of the others, and all that run."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from trialpod import tune
from trialpod.tune.search import OptunaSearch, prepare

pytest.importorskip("optuna", reason="OptunaSearch needs Optuna: pip install 'optuna>=5'")

from trialpod.tune.search.optuna.storage import BEST, Part

SPACE = {"x": tune.uniform(-1, 1), "n": tune.randint(0, 40), "kind": tune.choice(["a", "b"])}


def filled(count: int, order: list[int] | None = None) -> Part:
    part = Part(300)
    for number in order or range(count):
        part.add(number, (0, float(number * 7919 % count), 0.0))
    return part


def told(count: int, most: int | None, **arguments: Any) -> Any:
    rng = random.Random(0)
    search = prepare(
        OptunaSearch(model_trials=most, **arguments), space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1
    )
    for number in range(count):
        point = {"x": rng.uniform(-1, 1), "n": rng.randrange(40), "kind": rng.choice("ab")}
        loss = point["x"] ** 2 + rng.random() / 10
        search.searcher.add_evaluated_point(point, loss, error=number % 50 == 7, pruned=number % 9 == 4)
    return search


def configs(search: Any, count: int) -> list[Any]:
    return [search.next_suggestion().config for _ in range(count)]


def test_the_best_are_in_it_and_as_many_others_as_fit() -> None:
    part = filled(1000)
    shown = part.numbers()
    assert shown is not None
    assert len(shown) == 300
    assert shown == sorted(shown)
    best = sorted(range(1000), key=lambda number: number * 7919 % 1000)[:BEST]
    assert set(best) <= set(shown)
    others = [number for number in shown if number not in best]
    assert 400 < sum(others) / len(others) < 600  # from all times


def test_it_is_all_of_them_while_they_fit() -> None:
    assert filled(300).numbers() is None


def test_the_order_in_which_trials_ended_does_not_matter() -> None:
    order = list(range(1000))
    random.Random(1).shuffle(order)
    assert filled(1000, order).numbers() == filled(1000).numbers()


def test_rerun_trial_returns_with_its_new_rank() -> None:
    part = filled(1000)
    shown = part.numbers()
    assert shown is not None
    part.remove(shown[0])
    part.remove(shown[0])
    assert shown[0] not in (part.numbers() or ())
    part.add(shown[0], (0, -1.0, 0.0))
    assert shown[0] in (part.numbers() or ())
    assert len(part) == 1000


def test_up_to_model_trials_suggestions_are_those_of_all_trials() -> None:
    assert configs(told(240, 250), 3) == configs(told(240, None), 3)


def test_all_trials_beyond_the_limit() -> None:
    part, whole = told(600, 250), told(600, None)
    assert configs(part, 3) != configs(whole, 3)
    assert len(part.searcher.study.trials) == len(whole.searcher.study.trials) == 603


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_restored_searcher_sees_the_same_part(mode: str) -> None:
    def made() -> Any:
        return prepare(OptunaSearch(model_trials=250), space=SPACE, num_samples=-1, metric="loss", mode=mode, seed=1)

    search = made()
    rng = random.Random(2)
    for _ in range(400):
        search.searcher.add_evaluated_point({"x": rng.uniform(-1, 1), "n": 3, "kind": "a"}, rng.random())
    live = [search.next_suggestion() for _ in range(4)]
    search.on_trial_result(live[0].trial_id, {"loss": 0.01, "training_iteration": 2})
    search.on_pause(live[0].trial_id)
    search.on_trial_complete(live[1].trial_id, {"loss": 0.02})
    search.on_trial_complete(live[2].trial_id, None, error=True)
    search.on_unpause(live[0].trial_id)
    restored = made()
    restored.set_state(json.loads(json.dumps(search.get_state())))
    assert configs(restored, 3) == configs(search, 3)


def test_constraint_violations_rank_last() -> None:
    search = prepare(
        OptunaSearch(model_trials=250, constraints=["late"]),
        space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1,
    )  # fmt: skip
    for number in range(260):
        suggestion = search.next_suggestion()
        assert suggestion is not None
        search.on_trial_complete(suggestion.trial_id, {"loss": float(number), "late": 1.0 if number < 100 else -1.0})
    shown = search.searcher._storage._part.numbers()  # type: ignore[attr-defined]
    assert set(range(100, 125)) <= set(shown)


def test_many_parallel_suggestions_differ() -> None:
    found = [json.dumps(config) for config in configs(told(600, 250), 16)]
    assert len(set(found)) == 16
    xs = [json.loads(text)["x"] for text in found]
    assert len({round(x, 6) for x in xs}) == 16
