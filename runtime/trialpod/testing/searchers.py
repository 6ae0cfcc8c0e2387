"""What every searcher has to hold to, as tests that a plug-in's author runs on their own.

    class TestMySearcher(SearcherContract):
        def make(self):
            return MySearcher()

Each test runs an experiment that minimises (or maximises) a smooth function of the space of the suite, with trials
that overlap, are stopped, paused, fail or report nonsense, all from a fixed seed.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

from trialpod.tune.search.prepare import prepare
from trialpod.tune.search.sample import choice, loguniform, qrandint, quniform, randint, uniform
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.search.searcher import Searcher
from trialpod.tune.search.spaces.flat_space import FlatSpace

UNUSABLE = (None, "0.5", True, [1.0], math.nan, math.inf, -math.inf)

BOWL = {"a": uniform(-1.0, 1.0), "b": uniform(-1.0, 1.0), "c": uniform(-1.0, 1.0), "d": uniform(-1.0, 1.0)}


def bowl(config: dict[str, Any]) -> float:
    """Return the squared distance from a point that is neither in the middle nor at an edge."""
    best = {"a": 0.3, "b": 0.4, "c": 0.5, "d": 0.6}
    return float(sum((config[name] - best[name]) ** 2 for name in BOWL))


class SearcherContract:
    """Tests for a searcher; subclasses say how to make it."""

    steps = 16
    """How many trials a random history has."""

    parallel = 4
    """How many trials run at a time."""

    seeds: tuple[int, ...] = (0, 1)
    """Seeds of the random histories."""

    trials_to_learn = 40
    """How many trials, of a space with choices and logarithms, it may have until it suggests better ones than chance;
    0 when that is not expected of it."""

    trials_to_win = 40
    """With how many trials, of a space of four numbers, it finds a better one than as many random trials do; 0 when
    that is not expected of it."""

    seeds_to_win: tuple[int, ...] = (0,)
    """Seeds of the experiments for that, of which the median counts."""

    def make(self) -> Searcher:
        """Return a new searcher, always with the same arguments, without metric, mode, space and seed."""
        raise NotImplementedError

    @property
    def space(self) -> dict[str, Any]:
        """The search space."""
        return {
            "x": uniform(-1.0, 1.0),
            "lr": loguniform(1e-4, 1e-1),
            "model": {"layers": randint(1, 5), "units": qrandint(16, 64, 16), "drop": quniform(0.0, 0.5, 0.1)},
            "kind": choice(["a", "b", None]),
            "constant": {"deep": [1, 2]},
        }

    def loss(self, config: dict[str, Any]) -> float:
        """Return how bad a config is; 0 is best."""
        model = config["model"]
        return float(
            (config["x"] - 0.3) ** 2
            + 0.2 * (math.log10(config["lr"]) + 2) ** 2
            + 0.1 * abs(model["layers"] - 3)
            + 0.3 * (config["kind"] != "a")
        )

    def test_suggestions_are_in_the_space_and_complete(self) -> None:
        """Every config has all parameters, each within its domain, and the constants."""
        flat = FlatSpace(self.space, "the suite")
        for suggestion in self._run(0).suggestions:
            config = suggestion.config
            flat.encode(config)
            assert config.get("constant") == self.space.get("constant")
            if "model" in self.space:
                assert type(config["model"]["layers"]) is int
                assert type(config["x"]) is float
            assert suggestion.tag.startswith(str(int(suggestion.trial_id.rpartition("_")[2])))

    def test_the_same_seed_gives_the_same_trials(self) -> None:
        """And another seed others."""
        assert self._run(0).suggestions == self._run(0).suggestions
        assert self._run(0).suggestions != self._run(1).suggestions

    def test_a_restored_searcher_continues_with_the_same_suggestions(self) -> None:
        """Wherever in an experiment the state was taken; it is JSON data, and a copy of its own."""
        for seed in self.seeds:
            whole = self._run(seed, keep_states=True)
            for number, (state, position) in list(enumerate(whole.states))[:: max(1, len(whole.states) // 6)]:
                again = self._history(seed)
                again.search.set_state(json.loads(state))
                assert json.dumps(again.search.get_state()) == state, f"history {seed}, event {number}"
                again.resume(whole, position)
                assert again.suggestions == whole.suggestions[position["suggested"] :], f"history {seed}, {number}"

    def test_adopted_suggestions_leave_it_as_if_it_had_made_them(self) -> None:
        """A replay gives it its earlier suggestions, and it resumes from there."""
        for seed in self.seeds:
            whole = self._run(seed)
            replayed = self._history(seed)
            half = self.steps // 2
            replayed.adopted = list(zip(whole.suggestions[:half], whole.made_at[:half], strict=True))
            replayed.play(self.steps)
            assert replayed.suggestions == whole.suggestions

    def test_parallel_suggestions_differ(self) -> None:
        """Trials that run at the same time do not have the same config."""
        search = self._search(3)
        live = [s for s in (search.next_suggestion() for _ in range(self.parallel)) if s is not None]
        assert len({json.dumps(s.config) for s in live}) == len(live) >= 1

    def test_unknown_and_ended_trials_are_ignored(self) -> None:
        """Nothing is learnt from them, and nothing breaks."""
        informed, other = self._search(0), self._search(0)
        for search in (informed, other):
            first = search.next_suggestion()
            assert first is not None
            search.on_trial_complete(first.trial_id, self._result(0.5, 3))
        assert first is not None
        informed.on_trial_result("unknown_00000", self._result(0.1, 1))
        informed.on_trial_complete("unknown_00000", self._result(0.1, 1))
        informed.on_trial_stopped("unknown_00000", self._result(0.1, 1))
        informed.on_pause("unknown_00000")
        informed.on_unpause("unknown_00000")
        informed.on_trial_complete(first.trial_id, self._result(0.1, 4))
        assert informed.next_suggestion() == other.next_suggestion()

    def test_results_without_a_usable_number_neither_raise_nor_block(self) -> None:
        """A missing metric, NaN, infinities, a text: the trial counts as failed, and there are more suggestions."""
        search = self._search(0)
        for number in range(2 * len(UNUSABLE)):
            suggestion = search.next_suggestion()
            assert suggestion is not None, f"no suggestion after {number}"
            value = UNUSABLE[number % len(UNUSABLE)]
            search.on_trial_result(suggestion.trial_id, {"loss": value, "training_iteration": 1})
            search.on_trial_complete(suggestion.trial_id, {"loss": value} if number % 3 else None)
        json.dumps(search.get_state())

    def test_finished_until_samples_are_added(self) -> None:
        """`num_samples` is the number of trials."""
        search = self._search(0, num_samples=2)
        assert search.total == 2
        for _ in range(2):
            assert not search.finished
            suggestion = search.next_suggestion()
            assert suggestion is not None
            search.on_trial_complete(suggestion.trial_id, self._result(0.5, 1))
        assert search.finished
        assert search.next_suggestion() is None
        search.set_num_samples(3)
        assert search.next_suggestion() is not None

    def test_it_learns(self) -> None:
        """The later trials are better than random ones on average, whether large or small values are good."""
        if not self.trials_to_learn:
            return
        for mode, sign in (("min", 1.0), ("max", -1.0)):
            search = self._search(0, mode=mode)
            losses = []
            for _ in range(self.trials_to_learn):
                suggestion = search.next_suggestion()
                assert suggestion is not None
                losses.append(self.loss(suggestion.config))
                search.on_trial_complete(suggestion.trial_id, self._result(sign * losses[-1], 1))
            rng, flat = random.Random(0), FlatSpace(self.space, "the suite")
            points = ({d.name: d.draw(rng) for d in flat.dimensions} for _ in range(500))
            by_chance = [self.loss(flat.build(point, rng)[0]) for point in points]
            late = losses[-(self.trials_to_learn // 4) :]
            assert sum(late) / len(late) < 0.85 * sum(by_chance) / len(by_chance), mode

    def test_its_best_trial_is_better_than_that_of_random_search(self) -> None:
        """Its best of `trials_to_win` is better than nine tenths of the bests of as many random trials are."""
        if not self.trials_to_win:
            return
        bests = []
        rng = random.Random(0)
        for _ in range(200):
            points = ({name: rng.uniform(-1, 1) for name in BOWL} for _ in range(self.trials_to_win))
            bests.append(min(bowl(point) for point in points))
        by_chance = sorted(bests)[len(bests) // 10]
        found = []
        for seed in self.seeds_to_win:
            search = prepare(self.make(), space=BOWL, num_samples=-1, metric="loss", mode="min", seed=seed)
            losses = []
            for _ in range(self.trials_to_win):
                suggestion = search.next_suggestion()
                assert suggestion is not None
                losses.append(bowl(suggestion.config))
                search.on_trial_complete(suggestion.trial_id, self._result(losses[-1], 1))
            found.append(min(losses))
        assert sorted(found)[len(found) // 2] < by_chance, f"{found} against {by_chance}"

    # -- inside -----------------------------------------------------------------------------------------------------

    def _search(self, seed: int, num_samples: int = -1, mode: str = "min") -> SearchAlgorithm:
        return prepare(self.make(), space=self.space, num_samples=num_samples, metric="loss", mode=mode, seed=seed)

    def _history(self, seed: int) -> _History:
        return _History(self, self._search(seed), seed)

    def _run(self, seed: int, *, keep_states: bool = False) -> _History:
        history = self._history(seed)
        history.keep_states = keep_states
        history.play(self.steps)
        return history

    @staticmethod
    def _result(value: Any, step: int) -> dict[str, Any]:
        return {"loss": value, "training_iteration": step}


class _History:
    """A random experiment; `position` is all that it needs to be continued."""

    def __init__(self, suite: SearcherContract, search: SearchAlgorithm, seed: int) -> None:
        self.suite = suite
        self.search = search
        self.seed = seed
        self.live: list[Suggestion] = []
        self.suggestions: list[Suggestion] = []
        self.made_at: list[int] = []  # how many trials had ended when each suggestion was made
        self.adopted: list[tuple[Suggestion, int]] = []
        self.done = 0
        self.keep_states = False
        self.states: list[tuple[str, dict[str, Any]]] = []

    def resume(self, whole: _History, position: dict[str, Any]) -> None:
        """Continue from where `whole` was."""
        known = {suggestion.trial_id: suggestion for suggestion in whole.suggestions}
        self.live = [known[trial_id] for trial_id in position["live"]]
        self.done = position["done"]
        self.play(self.suite.steps)

    def play(self, steps: int) -> None:
        while self.done < steps:
            while len(self.live) < self.suite.parallel:
                suggestion = self._next()
                if suggestion is None:
                    break
                self.live.append(suggestion)
                self.suggestions.append(suggestion)
                self.made_at.append(self.done)
                self._keep()
            assert self.live, "no suggestion although no trial runs"
            self._end_one(random.Random(f"{self.seed}/{self.done}"))
            self.done += 1
            self._keep()

    def _next(self) -> Suggestion | None:
        if not self.adopted:
            return self.search.next_suggestion()
        if self.adopted[0][1] > self.done:
            return None
        suggestion, _ = self.adopted.pop(0)
        self.search.adopt(suggestion)
        return suggestion

    def _end_one(self, rng: random.Random) -> None:
        suggestion = self.live.pop(rng.randrange(len(self.live)))
        trial, loss = suggestion.trial_id, self.suite.loss(suggestion.config)
        self.search.on_trial_result(trial, {"loss": loss + 1, "training_iteration": 1})
        if rng.random() < 0.3:
            self.search.on_pause(trial)
            if rng.random() < 0.7:
                self.search.on_unpause(trial)
                self.search.on_trial_result(trial, {"loss": loss + 0.5, "training_iteration": 2})
        how, last = rng.random(), {"loss": loss, "training_iteration": 3}
        if how < 0.15:
            self.search.on_trial_complete(trial, None, error=True)
            if how < 0.05:  # it was retried
                self.search.on_trial_complete(trial, last)
        elif how < 0.4:
            self.search.on_trial_stopped(trial, {**last, "loss": loss + 0.25})
            if how < 0.2:  # the experiment had failed, and was retried
                self.search.on_trial_complete(trial, last)
        elif how < 0.5:
            self.search.on_trial_complete(trial, {"loss": math.nan, "training_iteration": 3})
        else:
            self.search.on_trial_complete(trial, last)

    def _keep(self) -> None:
        if self.keep_states:
            position = {
                "live": [suggestion.trial_id for suggestion in self.live],
                "done": self.done,
                "suggested": len(self.suggestions),
            }
            self.states.append((json.dumps(self.search.get_state()), position))
