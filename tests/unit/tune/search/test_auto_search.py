"""The search of `auto`: what it proposes, in which order, and what it makes of paused trials."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing import SearcherContract
from trialpod.tune.search import AutoSearch, create_searcher, prepare
from trialpod.tune.search.auto.points import at, every, share_of, spread
from trialpod.tune.search.auto.prior import Prior
from trialpod.tune.search.auto.view import COMPLETE, View
from trialpod.tune.search.spaces.flat_space import FlatSpace

pytest.importorskip("optuna")

SPACE = {
    "lr": tune.loguniform(1e-4, 1.0),
    "layers": tune.randint(1, 6),
    "optimizer": tune.choice(["sgd", "adam"]),
    "width": tune.lograndint(8, 512),
}


def search(space: dict[str, Any] | None = None, **arguments: Any) -> Any:
    made = AutoSearch(**{"seed": 1, **arguments})
    return prepare(made, space=space or SPACE, num_samples=-1, metric="loss", mode="min", seed=1)


def loss(config: dict[str, Any]) -> float:
    return (math.log10(config["lr"]) + 2) ** 2 + (config["optimizer"] == "sgd") + abs(config["layers"] - 3) / 3


def played(made: Any, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Play trials that reach rungs, pause, continue, end and fail at random; return their configs."""
    rng = random.Random(seed)
    configs, paused = [], []
    for _ in range(count):
        suggestion = made.next_suggestion()
        configs.append(suggestion.config)
        value = loss(suggestion.config)
        if rng.random() < 0.05:
            made.on_trial_complete(suggestion.trial_id, error=True)
            continue
        made.on_trial_rung(suggestion.trial_id, 3.0, {"loss": value + rng.gauss(0, 0.1), "training_iteration": 3})
        if rng.random() < 0.6:
            made.on_pause(suggestion.trial_id)
            paused.append((suggestion.trial_id, value))
        else:
            made.on_trial_complete(suggestion.trial_id, {"loss": value, "training_iteration": 9})
        if paused and rng.random() < 0.2:
            trial_id, value = paused.pop(rng.randrange(len(paused)))
            made.on_unpause(trial_id)
            made.on_trial_rung(trial_id, 9.0, {"loss": value, "training_iteration": 9})
    return configs


class TestContract(SearcherContract):
    trials_to_learn = 40
    trials_to_win = 60

    def make(self) -> AutoSearch:
        return AutoSearch()


class TestView:
    def test_ranks_only_within_rungs(self) -> None:
        view = View()
        for number, (rung, value) in enumerate([(3, 0.9), (3, 0.5), (3, 0.7), (9, 5.0), (9, 6.0)]):
            view.begin(number)
            if rung == 9:
                view.reach(number, 3.0, 0.1 * number)
            view.reach(number, float(rung), value)
        assert view.score(3) == pytest.approx(1 / 5)
        assert view.score(4) == pytest.approx(2 / 5)
        assert [view.score(number) for number in range(3)] == [1.0, pytest.approx(3 / 5), pytest.approx(4 / 5)]
        assert view.best(2) == [3, 4]

    def test_diverged_is_worst_and_unknown_none(self) -> None:
        view = View()
        for number in range(3):
            view.begin(number)
        view.reach(0, 3.0, 0.5)
        view.reach(1, 3.0, math.nan)
        assert (view.score(0), view.score(1), view.score(2)) == (1.0, 1.0, None)
        assert view.best(5) == [0]

    def test_complete_trials_outrank_all_others(self) -> None:
        view = View()
        for number in range(10):
            view.begin(number)
            view.reach(number, 3.0, float(number))
        view.reach(9, COMPLETE, 50.0)
        assert view.score(9) == pytest.approx(0.1)
        assert view.best(1) == [9]

    def test_trials_that_rose_unseen_rank_before_those_stopped(self) -> None:
        view = View()
        for number in range(5):
            view.begin(number)
        view.stop(0, 3, 0.4)
        view.stop(1, 3, 0.6)
        for number in (2, 3, 4):
            view.reach(number, COMPLETE, 0.3 - number / 100)
        assert [view.score(number) for number in range(5)] == pytest.approx([4 / 5, 1.0, 3 / 5, 2 / 5, 1 / 5])

    def test_iteration_of_an_end_is_no_rung_beside_named_ones(self) -> None:
        view = View()
        for number in range(4):
            view.begin(number)
        view.stop(0, 500, 0.5)  # before any rung was named
        for number in (1, 2, 3):
            view.reach(number, 10.0, float(number))  # say, seconds
        view.reach(1, 30.0, 1.0)
        view.stop(3, 600, 3.0)
        assert [view.score(number) for number in range(4)] == [None, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
        assert view.best(1) == [1]


class TestPoints:
    def test_shares_of_a_range_round_trip(self) -> None:
        for dimension in FlatSpace(SPACE, "test").dimensions:
            for share in (0.01, 0.3, 0.77, 0.99):
                number = at(dimension, share)
                assert dimension.low <= number <= dimension.high
                assert at(dimension, share_of(dimension, number)) == pytest.approx(number)

    def test_spread_points_fill_each_dimension_evenly(self) -> None:
        flat = FlatSpace({"x": tune.uniform(0, 1), "y": tune.loguniform(1e-3, 1), "c": tune.choice([1, 2])}, "test")
        points = [spread(flat, number, random.Random(5)) for number in range(16)]
        quarters = [int(point["x"] * 4) for point in points]
        assert all(3 <= quarters.count(quarter) <= 5 for quarter in range(4))
        assert 6 <= sum(point["c"] for point in points) <= 10

    def test_only_small_discrete_spaces_are_listed(self) -> None:
        nested = {"model": tune.choice([{"depth": tune.randint(1, 4)}, "linear"])}
        assert len(every(FlatSpace(nested, "test")) or ()) == 4
        deep = {
            "m": tune.choice([nested, {"k": tune.choice([{"a": tune.randint(0, 3)}, 7]), "b": tune.randint(0, 2)}])
        }
        points = every(FlatSpace({**deep, "n": tune.randint(5, 7)}, "test")) or []
        assert len({json.dumps(point) for point in points}) == len(points) == (4 + 4 * 2) * 2
        assert every(FlatSpace({"x": tune.randint(0, 2**70), "y": tune.choice([1, 2])}, "test")) is None
        assert every(FlatSpace({"x": tune.uniform(0, 1)}, "test")) is None
        assert every(FlatSpace({"x": tune.randint(0, 10**6)}, "test")) is None

    def test_options_do_not_multiply_their_points(self) -> None:
        space = {"model": tune.choice([{f"p{number}": tune.randint(0, 10)} for number in range(6)])}
        assert len(every(FlatSpace(space, "test")) or ()) == 60
        search = prepare(AutoSearch(), space=space, num_samples=-1, metric="loss", mode="min", seed=1)
        found = []
        while (suggestion := search.next_suggestion()) is not None:
            found.append(json.dumps(suggestion.config))
            search.on_trial_complete(suggestion.trial_id, {"loss": len(found) % 7, "training_iteration": 1})
        assert len(set(found)) == len(found) == 60


class TestSuggestions:
    def test_points_of_the_user_come_first(self) -> None:
        made = search(points_to_evaluate=[{"lr": 0.01, "layers": 3, "optimizer": "adam", "width": 64}, {"lr": 0.5}])
        first, second = (made.next_suggestion().config for _ in range(2))
        assert first == {"lr": 0.01, "layers": 3, "optimizer": "adam", "width": 64}
        assert second["lr"] == 0.5

    def test_no_point_twice_and_small_spaces_end(self) -> None:
        made = search({"a": tune.randint(0, 4), "b": tune.choice(["x", "y", "z"]), "c": 7})
        seen = set()
        while (suggestion := made.next_suggestion()) is not None:
            seen.add(json.dumps(suggestion.config, sort_keys=True))
            made.on_trial_complete(suggestion.trial_id, {"loss": suggestion.config["a"], "training_iteration": 1})
        assert made.finished
        assert made.total == len(seen) == 12

    def test_repeats_are_possible_when_wanted(self) -> None:
        made = search({"a": tune.randint(0, 2)}, repeats=True)
        assert {made.next_suggestion().config["a"] for _ in range(20)} == {0, 1}

    def test_it_learns_from_rungs_alone(self) -> None:
        made = search()
        losses = []
        for _ in range(60):
            suggestion = made.next_suggestion()
            losses.append(loss(suggestion.config))
            made.on_trial_rung(suggestion.trial_id, 3.0, {"loss": losses[-1]})
            made.on_pause(suggestion.trial_id)
        assert sum(losses[40:]) < 0.6 * sum(losses[:20])

    def test_worst_trials_stopped_by_seconds_are_not_copied(self) -> None:
        made = search()
        losses = []
        for number in range(60):
            suggestion = made.next_suggestion()
            losses.append(loss(suggestion.config))
            result = {"loss": losses[-1], "training_iteration": 1000 + number}
            made.on_trial_rung(suggestion.trial_id, 60.0, result)
            if losses[-1] > sorted(losses)[len(losses) // 3]:
                made.on_trial_stopped(suggestion.trial_id, result)
            else:
                made.on_trial_rung(suggestion.trial_id, 180.0, result)
        assert sum(losses[40:]) < 0.6 * sum(losses[:20])

    def test_suggestion_of_the_gaussian_process_takes_one_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from threadpoolctl import threadpool_info

        from trialpod.tune.search.auto import gaussian_process

        seen = []
        fit = gaussian_process._fit

        def watched(*arguments: Any) -> Any:
            seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
            return fit(*arguments)

        monkeypatch.setattr(gaussian_process, "_fit", watched)
        played(search(random_share=0.0), 14)
        assert set(seen) == {1}

    def test_restart_at_any_event_gives_the_same_run(self) -> None:
        whole = search()
        expected = played(whole, 40)
        for cut in (0, 5, 11, 25, 39):
            first = search()
            played(first, cut)
            state = json.loads(json.dumps(first.get_state(), allow_nan=False))
            restored = search()
            restored.set_state(state)
            assert restored.next_suggestion().config == expected[cut]

    def test_state_stays_below_a_kilobyte_per_trial(self) -> None:
        made = search()
        played(made, 100)
        assert len(json.dumps(made.get_state())) < 100_000

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"startup": 0}, "startup"),
            ({"local_share": 1.5}, "local_share"),
            ({"local_share": 0.6, "random_share": 0.6}, "at most 1"),
            ({"model": "tree"}, "tpe"),
            ({"model_trials": 10}, "model_trials"),
            ({"repeats": 3}, "repeats"),
        ],
    )
    def test_bad_arguments_are_refused_by_name(self, wrong: dict[str, Any], named: str) -> None:
        with pytest.raises(InvalidInputError, match=named):
            create_searcher("auto", **wrong)


class TestPrior:
    GIVEN: ClassVar = {"lr": {"center": 0.01, "spread": 0.05}, "optimizer": {"center": "adam"}}

    def test_its_center_comes_after_the_points_of_the_user(self) -> None:
        made = search(prior=self.GIVEN, points_to_evaluate=[{"lr": 0.5}])
        first, second, third = (made.next_suggestion().config for _ in range(3))
        assert first["lr"] == 0.5
        assert (second["lr"], second["optimizer"]) == (0.01, "adam")
        assert third["lr"] != 0.01

    def test_half_of_the_first_points_are_drawn_from_it(self) -> None:
        made = search(prior=self.GIVEN, startup=200)
        near = [1e-3 < config["lr"] < 0.1 for config in (made.next_suggestion().config for _ in range(200))]
        assert 110 < sum(near) < 160  # half of them by the prior, and half of the others by chance

    def test_without_one_nothing_changes(self) -> None:
        assert played(search(), 30) == played(search(prior=None), 30)

    def test_trust_ends_when_favoured_points_score_no_better(self) -> None:
        prior = Prior.given(FlatSpace(SPACE, "Test"), self.GIVEN)
        inside = {"lr": 0.01, "layers": 2, "optimizer": 1, "width": 16}
        outside = {**inside, "lr": 0.5}
        assert prior.trust([(inside, 0.9), (outside, 0.1)]) == 1.0  # too few to tell
        assert prior.trust([(inside, 0.2)] * 3 + [(outside, 0.8)] * 3) == 1.0
        assert prior.trust([(inside, 0.8)] * 3 + [(outside, 0.2)] * 3) == 0.0
        assert prior.trust([(inside, 0.5)] * 3 + [(outside, 0.5)] * 3) == 0.0
        assert 0.0 < prior.trust([(inside, 0.45)] * 3 + [(outside, 0.5)] * 3) < 1.0

    @given(st.floats(1e-4, 1.0), st.floats(0.001, 1.0), st.integers(1, 5), st.integers(0, 2**32))
    def test_draws_stay_in_the_space(self, lr: float, spread: float, layers: int, seed: int) -> None:
        space = {**SPACE, "momentum": tune.quniform(0.0, 1.0, 0.1)}
        given = {
            "lr": {"center": lr, "spread": spread},
            "layers": {"center": layers, "spread": spread},
            "width": {"center": 511, "spread": spread},
            "momentum": {"center": 0.9, "spread": spread},
        }
        flat = FlatSpace(space, "Test")
        rng = random.Random(seed)
        config, _ = flat.build(Prior.given(flat, given).draw(rng), rng)
        assert all(domain.is_valid(config[name]) for name, domain in space.items())

    def test_belief_about_an_option_waits_for_that_option(self) -> None:
        space = {"model": tune.choice([{"depth": tune.randint(1, 9)}, "linear"]), "lr": tune.uniform(0, 1)}
        made = search(space, prior={"model[0]/depth": {"center": 7}})
        models = [made.next_suggestion().config["model"] for _ in range(10)]
        assert 7 in [model["depth"] for model in models if model != "linear"]

    def test_restart_at_any_event_gives_the_same_run(self) -> None:
        expected = played(search(prior=self.GIVEN), 30)
        for cut in (0, 1, 11, 29):
            first = search(prior=self.GIVEN)
            played(first, cut)
            state = json.loads(json.dumps(first.get_state(), allow_nan=False))
            restored = search(prior=self.GIVEN)
            restored.set_state(state)
            assert restored.next_suggestion().config == expected[cut]

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({}, "at least one parameter"),
            ({"lr": 0.01}, "prior.lr must be a mapping with center"),
            ({"lr": {"spread": 0.1}}, "prior.lr must be a mapping with center"),
            ({"lr": {"center": 0.1, "spred": 0.1}}, "prior.lr.spred is unknown. Did you mean spread"),
            ({"lr": {"center": 0.1, "spread": 0}}, "above 0 and at most 1, got 0"),
            ({"lr": {"center": 5}}, "prior.lr.center: .*outside of"),
            ({"optimizer": {"center": "lion"}}, "'lion' is not among"),
            ({"lrr": {"center": 0.1}}, "Did you mean 'lr'"),
        ],
    )
    def test_what_cannot_be_believed_is_named(self, wrong: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidInputError, match=said) as raised:
            search(prior=wrong)
        assert raised.value.parameter == ("prior",)


def _stored(folder: Path, rows: list[dict[str, Any]]) -> str:
    """Write an experiment with one result for each trial; return its directory."""
    (folder / ".trialpod").mkdir(parents=True)
    (folder / ".trialpod" / "experiment.json").write_text('{"version": 1, "name": "early"}')
    for number, row in enumerate(rows):
        (folder / f"trial{number}").mkdir()
        (folder / f"trial{number}" / "result.json").write_text(json.dumps(row) + "\n")
    return str(folder)


def _row(lr: Any, loss: Any, iteration: int = 9, **more: Any) -> dict[str, Any]:
    config = {"lr": lr, "layers": 2, "optimizer": "adam", "width": 64, **more}
    return {"loss": loss, "training_iteration": iteration, "config": config}


class TestEarlierExperiment:
    ROWS: ClassVar = [_row(0.5, 9.0), _row(0.01, 1.0), _row(0.02, 2.0), _row(0.03, 3.0), _row(1e-4, 0.1, iteration=2)]

    def test_its_best_configs_are_tried_first(self, tmp_path: Path) -> None:
        made = search(warm_start=_stored(tmp_path / "early", self.ROWS), points_to_evaluate=[{"lr": 0.7}])
        assert [made.next_suggestion().config["lr"] for _ in range(4)] == [0.7, 0.01, 0.02, 0.03]

    def test_its_values_are_no_values_of_this_one(self, tmp_path: Path) -> None:
        made = search(warm_start=_stored(tmp_path / "early", self.ROWS))
        made.next_suggestion()
        assert made.searcher._view.is_empty

    def test_suggestions_look_around_what_was_good(self, tmp_path: Path) -> None:
        made = search(warm_start=_stored(tmp_path / "early", self.ROWS), startup=100)
        near = [0.003 < made.next_suggestion().config["lr"] < 0.1 for _ in range(100)]
        assert sum(near) > 55  # by chance it were 38

    def test_another_space_counts_where_it_overlaps(self, tmp_path: Path) -> None:
        rows = [_row(0.01, 1.0, width=4096, depth=3), _row("high", 2.0)]
        made = search(warm_start=_stored(tmp_path / "early", rows))
        first, second = (made.next_suggestion().config for _ in range(2))
        assert (first["lr"], first["layers"]) == (0.01, 2)
        assert 8 <= first["width"] < 512
        assert (second["layers"], second["width"]) == (2, 64)

    @pytest.mark.parametrize("rows", [[], [{"loss": 1.0, "config": {"depth": 3}}], [_row(0.1, "low")]])
    def test_one_that_teaches_nothing_is_an_error(self, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
        made = search(warm_start=_stored(tmp_path / "early", rows))
        with pytest.raises(
            InvalidInputError, match=r"nothing can be learned from .*early: (of its \d|none of its) trials"
        ):
            made.next_suggestion()

    def test_restart_needs_it_no_more(self, tmp_path: Path) -> None:
        place = _stored(tmp_path / "early", self.ROWS)
        expected = played(search(warm_start=place), 30)
        first = search(warm_start=place)
        played(first, 7)
        shutil.rmtree(place)
        restored = search(warm_start=place)
        restored.set_state(json.loads(json.dumps(first.get_state(), allow_nan=False)))
        assert restored.next_suggestion().config == expected[7]

    def test_one_may_be_given_before_the_space(self, tmp_path: Path) -> None:
        made = AutoSearch(seed=1)
        assert made.add_evaluated_experiment(_stored(tmp_path / "early", self.ROWS)) == 5
        prepared = prepare(made, space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1)
        assert prepared.next_suggestion().config["lr"] == 0.01
