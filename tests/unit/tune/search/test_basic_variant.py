"""Random and grid search: order, ids, tags, first points, extension, state."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod.tune.search import create_searcher, prepare
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import choice, grid_search, randint, sample_from, uniform
from trialpod.tune.search.search_algorithm import Suggestion

SPACE: dict[str, Any] = {
    "lr": uniform(0, 1),
    "layers": grid_search([1, 2, 3]),
    "optimizer": {"name": choice(["sgd", "adam"]), "momentum": sample_from(lambda c: c["lr"] / 2)},
    "epochs": 5,
}


def search(num_samples: int = 2, space: dict[str, Any] | None = None, **arguments: Any) -> BasicVariantGenerator:
    searcher = BasicVariantGenerator(**{"seed": 7, **arguments})
    searcher.configure(SPACE if space is None else space, num_samples, "abcde")
    return searcher


def all_of(searcher: BasicVariantGenerator) -> list[Suggestion]:
    suggestions = []
    while (suggestion := searcher.next_suggestion()) is not None:
        suggestions.append(suggestion)
    return suggestions


def test_each_sample_goes_through_the_grid_with_fresh_draws() -> None:
    searcher = search(2)
    trials = all_of(searcher)
    assert searcher.total == 6
    assert searcher.finished
    assert [trial.config["layers"] for trial in trials] == [1, 2, 3, 1, 2, 3]
    assert len({trial.config["lr"] for trial in trials}) == 6
    assert all(trial.config["optimizer"]["momentum"] == trial.config["lr"] / 2 for trial in trials)
    assert [trial.trial_id for trial in trials] == [f"abcde_{number:05d}" for number in range(6)]


def test_tags_name_the_variables_with_four_decimals() -> None:
    space = {"b": {"rate": grid_search([0.123456])}, "a": grid_search(["x/y z"]), "fixed": 3}
    assert [trial.tag for trial in all_of(search(2, space))] == ["0_a=x_y_z,rate=0.1235", "1_a=x_y_z,rate=0.1235"]
    assert [trial.tag for trial in all_of(search(1, {"fixed": 3}))] == ["0"]


def test_an_empty_space_gives_one_trial_per_sample() -> None:
    assert [trial.config for trial in all_of(search(3, {}))] == [{}, {}, {}]


def test_constant_grid_search_keeps_the_draws_over_the_grid() -> None:
    space = {**SPACE, "double": sample_from(lambda c: c["layers"] * 2), "inner": choice([{"x": uniform(0, 1)}])}
    trials = all_of(search(2, space, constant_grid_search=True))
    assert [len({trial.config["lr"] for trial in part}) for part in (trials[:3], trials[3:])] == [1, 1]
    assert [len({trial.config["inner"]["x"] for trial in part}) for part in (trials[:3], trials[3:])] == [1, 1]
    assert trials[0].config["lr"] != trials[3].config["lr"]
    assert [trial.config["double"] for trial in trials] == [2, 4, 6, 2, 4, 6]


def test_points_to_evaluate_replace_the_first_samples() -> None:
    points = [{"lr": 0.5, "layers": 2}, {"optimizer": {"name": "adam"}}]
    searcher = search(3, points_to_evaluate=points)
    trials = all_of(searcher)
    assert searcher.total == len(trials) == 1 + 3 + 3
    assert (trials[0].config["lr"], trials[0].config["layers"], trials[0].config["epochs"]) == (0.5, 2, 5)
    assert [trial.config["optimizer"]["name"] for trial in trials[1:4]] == ["adam"] * 3
    assert [trial.config["layers"] for trial in trials[1:]] == [1, 2, 3, 1, 2, 3]


def test_more_points_than_samples_are_all_tried() -> None:
    trials = all_of(search(1, {"x": uniform(0, 1)}, points_to_evaluate=[{"x": 0.1}, {"x": 0.2}, {"x": 0.3}]))
    assert [trial.config["x"] for trial in trials] == [0.1, 0.2, 0.3]


def test_a_point_outside_of_its_domain_is_tried_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trials = all_of(search(1, {"x": uniform(0, 1)}, points_to_evaluate=[{"x": 3}]))
    assert trials[0].config == {"x": 3}
    assert "points_to_evaluate[0] sets x to 3" in caplog.text


def test_a_point_with_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"\[0\] sets optimizer/nam.*Did you mean optimizer/name"):
        search(1, points_to_evaluate=[{"optimizer": {"nam": "adam"}}])


@given(st.integers(1, 5), st.integers(0, 5), st.integers(0, 2**40))
def test_a_longer_search_starts_with_the_trials_of_the_shorter(samples: int, more: int, seed: int) -> None:
    short, long = search(samples, seed=seed), search(samples + more, seed=seed)
    first = all_of(short)
    short.set_num_samples(samples + more)
    assert all_of(long) == first + all_of(short)


def test_fewer_samples_than_suggested_end_the_search() -> None:
    searcher = search(3)
    for _ in range(4):
        searcher.next_suggestion()
    searcher.set_num_samples(1)
    assert searcher.finished
    assert searcher.total == 4
    assert searcher.next_suggestion() is None


@given(st.integers(0, 12), st.booleans(), st.integers(0, 2**40))
def test_state_through_json_gives_the_same_remaining_suggestions(at: int, constant: bool, seed: int) -> None:
    arguments: dict[str, Any] = {
        "constant_grid_search": constant,
        "points_to_evaluate": [{"lr": 0.5}, {"layers": 3}],
    }
    searcher = search(4, seed=seed, **arguments)
    for _ in range(at):
        searcher.next_suggestion()
    state = json.loads(json.dumps(searcher.get_state(), allow_nan=False))
    restored = search(4, seed=None, **arguments)
    restored.set_state(state)
    assert restored.total == searcher.total
    assert all_of(restored) == all_of(searcher)


def test_different_seeds_give_different_trials_and_ids() -> None:
    first, second = BasicVariantGenerator(seed=1), BasicVariantGenerator(seed=2)
    for searcher in (first, second):
        searcher.configure({"x": uniform(0, 1)})
    one, two = first.next_suggestion(), second.next_suggestion()
    assert one is not None
    assert two is not None
    assert one.config != two.config
    assert one.trial_id != two.trial_id
    assert len(one.trial_id) == 11


def test_max_concurrent_waits_for_a_trial_to_end() -> None:
    searcher = search(2, max_concurrent=2)
    first = searcher.next_suggestion()
    assert first is not None
    searcher.next_suggestion()
    assert searcher.next_suggestion() is None
    assert not searcher.finished
    restored = search(2, max_concurrent=2)
    restored.set_state(json.loads(json.dumps(searcher.get_state())))
    assert restored.next_suggestion() is None
    restored.on_trial_complete(first.trial_id)
    assert restored.next_suggestion() is not None


@pytest.mark.parametrize("arguments", [{}, {"max_concurrent": 2}, {"constant_grid_search": True}])
def test_second_experiment_gets_all_samples(arguments: dict[str, Any]) -> None:
    searcher = search(1, **arguments)
    first = [searcher.next_suggestion() for _ in range(2)]
    searcher.configure({"lr": uniform(5, 6), "layers": grid_search([1, 2, 3])}, 1, "fghij")
    later = []
    while (suggestion := searcher.next_suggestion()) is not None:
        searcher.on_trial_complete(suggestion.trial_id)
        later.append(suggestion)
    assert None not in first
    assert [each.trial_id for each in later] == [f"fghij_{number:05d}" for number in range(3)]
    assert all(5 <= each.config["lr"] <= 6 for each in later)


class TestExperimentSeed:
    """A generator that was made without a seed has the experiment's."""

    def made(self, seed: int | None = 7, *, chosen: bool = True, **arguments: Any) -> Any:
        given = BasicVariantGenerator(**arguments)
        return prepare(given, space=SPACE, num_samples=2, seed=seed, chosen_seed=chosen)

    @pytest.mark.parametrize("arguments", [{}, {"constant_grid_search": True}])
    def test_restart_continues_with_the_same_trials(self, arguments: dict[str, Any]) -> None:
        first, again = self.made(**arguments), self.made(**arguments)
        for _ in range(2):
            again.adopt(first.next_suggestion())
        assert all_of(again) == all_of(first)

    def test_own_seed_stays(self) -> None:
        own = prepare(BasicVariantGenerator(seed=7), space=SPACE, num_samples=2, seed=3)
        assert all_of(own) == all_of(self.made(seed=7))

    def test_own_generator_draws_and_ids_are_the_experiments(self) -> None:
        trials = all_of(self.made(random_state=np.random.RandomState(3)))
        assert trials == all_of(self.made(random_state=np.random.RandomState(3)))
        assert [each.config for each in trials] != [each.config for each in all_of(self.made())]
        assert [each.trial_id for each in trials] == [each.trial_id for each in all_of(self.made())]

    def test_chosen_seed_goes_before_numpys_generator(self) -> None:
        plain = all_of(self.made())
        before = np.random.get_state()
        try:
            np.random.seed(3)
            assert all_of(self.made()) == plain
            followed = all_of(self.made(chosen=False))
            np.random.seed(3)
            alone = BasicVariantGenerator()
            alone.configure(SPACE, 2)
            assert [each.config for each in all_of(alone)] == [each.config for each in followed]
            assert [each.trial_id for each in followed] == [each.trial_id for each in plain]
        finally:
            np.random.set_state(before)


def test_minus_one_samples_never_end() -> None:
    searcher = search(-1, {"x": randint(0, 3)})
    assert searcher.total is None
    assert all(searcher.next_suggestion() is not None for _ in range(100))
    assert not searcher.finished


def test_a_million_point_grid_starts_and_resumes_at_once() -> None:
    space: dict[str, Any] = {f"k{number}": grid_search(list(range(10))) for number in range(6)}
    started = time.perf_counter()
    searcher = search(3, space)
    assert searcher.total == 3_000_000
    state = {**searcher.get_state(), "next": 2_999_999}
    searcher.set_state(state)
    assert [trial.config for trial in all_of(searcher)] == [dict.fromkeys(space, 9)]
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("number", [0, -2, 1.5, True])
def test_wrong_numbers_of_samples_are_refused(number: Any) -> None:
    with pytest.raises(InvalidInputError, match="num_samples"):
        search(number)


def test_search_algorithms_are_made_by_name() -> None:
    for name in ("variant_generator", "random", "grid", "Variant-Generator"):
        assert isinstance(create_searcher(name, seed=1), BasicVariantGenerator)
    with pytest.raises(InvalidInputError, match=r"'randon'. Did you mean 'random'\? Known are .*grid, hebo"):
        create_searcher("randon")
    with pytest.raises(InvalidInputError, match=r"no parameter 'max_concurent'. Did you mean 'max_concurrent'"):
        create_searcher("random", max_concurent=3)
