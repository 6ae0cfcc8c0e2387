"""What every scheduler has to hold to, as tests that a plug-in's author runs on their own.

    class TestMyScheduler(SchedulerContract):
        def make(self):
            return MyScheduler(metric="score", mode="max")

Each test plays random histories of a small experiment (`SimulatedExperiment`): results, ends, failures, retries, all
from a fixed seed. Time is both ``training_iteration`` and ``time_total_s``, the metric is ``score``.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import Horizon
from trialpod.testing.simulation import LIVE, SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler

VALUES = (0.0, 0.1, 0.2, 0.5, 0.5, 0.9, 1.5, -3.0, math.nan)
UNUSABLE = (None, "0.5", "", True, [1], {"a": 1}, math.nan, math.inf, -math.inf)


class SchedulerContract:
    """Tests for a scheduler; subclasses say how to make it."""

    histories = 40
    """How many random histories each test plays."""

    trials = 8
    length = 24
    """A trial ends by itself at this time."""

    may_leave_paused = False
    """Whether trials may be left paused when there is nothing else to run; the engine stops them then."""

    def make(self) -> TrialScheduler:
        """Return a new scheduler, always with the same arguments."""
        raise NotImplementedError

    def config(self, number: int) -> dict[str, Any]:
        """Return the config of trial `number`."""
        return {"lr": 0.01 * (number + 1), "layers": number % 3 + 1}

    def test_results_may_arrive_as_late_as_the_horizons_allow(self) -> None:
        """Decisions and their reasons are the same, and every result before a horizon is answered CONTINUE."""
        for seed in range(self.histories):
            script = self._script(seed)
            at_once, batched = self._experiment(), self._experiment(batched=True)
            at_once.play(script)
            batched.play(script)
            batched.flush()
            assert at_once.decisions() == batched.decisions(), f"history {seed}"
            ours, theirs = (experiment.scheduler.get_state() for experiment in (at_once, batched))
            assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True), f"history {seed}"

    def test_a_restart_before_anything_that_happens_changes_nothing(self) -> None:
        """The state goes through JSON into a new scheduler before each call."""
        for seed in range(self.histories // 4 or 1):
            script = self._script(seed)
            uninterrupted, restarted = self._experiment(slots=3), self._experiment(slots=3, restarts=True)
            uninterrupted.play(script)
            restarted.play(script)
            assert uninterrupted.log == restarted.log, f"history {seed}"

    def test_the_same_history_gives_the_same_decisions(self) -> None:
        """There is no other source of randomness than the scheduler's seed."""
        for seed in range(self.histories // 4 or 1):
            script = self._script(seed)
            logs = []
            for before in (1, 2):
                random.seed(before)
                global_state = random.getstate()
                experiment = self._experiment(slots=4)
                experiment.play(script)
                assert random.getstate() == global_state, "the global random source was used"
                logs.append(experiment.log)
            assert logs[0] == logs[1], f"history {seed}"

    def test_every_trial_comes_to_an_end(self) -> None:
        """With few places, trials created one by one, with checkpoints and without."""
        for seed in range(self.histories // 4 or 1):
            for slots in (1, 3, self.trials):
                for checkpoints in (True, False):
                    rng = random.Random(seed)
                    experiment = self._experiment(slots=slots, lazily=seed % 2 == 0, checkpoints=checkpoints)
                    experiment.play(self._script(seed, steps=20))
                    left = experiment.finish(self.length, _drawn(rng))
                    assert all(trial.status not in LIVE for trial in experiment.trials)
                    assert left == 0 or self.may_leave_paused, f"history {seed}: {left} trials were left paused"

    def test_time_may_jump_and_go_back(self) -> None:
        """Coarse or repeated reports, as after a restart from an older checkpoint, leave no trial behind."""
        for seed in range(self.histories // 4 or 1):
            rng = random.Random(seed)
            experiment = self._experiment(slots=3)
            experiment.play(
                Step(rng.randrange(self.trials), "result", rng.choice((-3.0, 0.0, 0.5, 7.0, 40.0)), {"score": 0.5})
                for _ in range(60)
            )
            left = experiment.finish(self.length, _constant)
            assert left == 0 or self.may_leave_paused, f"history {seed}: {left} trials were left paused"

    def test_unusable_results_are_ignored_or_refused(self) -> None:
        """A missing, odd or infinite metric or time does not crash; a refusal is one of trialpod's own errors."""
        for key in ("score", "training_iteration", "time_total_s"):
            for value in UNUSABLE:
                experiment = self._experiment(slots=3)
                try:
                    for _ in range(6):
                        for number in range(self.trials):
                            experiment.play([Step(number, "result", 1.0, {"score": 0.1 * number, key: value})])
                except TrialpodError as error:
                    refusal = str(error)
                else:
                    continue
                assert key in refusal, f"the error does not name {key}: {refusal}"

    def test_horizons_are_made_of_horizons(self) -> None:
        """Before a trial is known, and at any time after."""
        assert all(isinstance(horizon, Horizon) for horizon in self.make().horizons(SimulatedTrial("new", {}, "")))
        experiment = self._experiment()
        for step in self._script(0):
            experiment.play([step])
            for trial in experiment.trials:
                found = experiment.scheduler.horizons(trial)
                assert all(isinstance(horizon, Horizon) and isinstance(horizon.at, float) for horizon in found)

    def test_a_state_of_nothing_can_be_restored(self) -> None:
        """A snapshot may be taken before the first trial."""
        fresh, restored = self.make(), self.make()
        restored.set_state(json.loads(json.dumps(fresh.get_state(), allow_nan=False)))
        assert restored.get_state() == fresh.get_state()

    def _experiment(self, **arguments: Any) -> SimulatedExperiment:
        return SimulatedExperiment(self.make, [self.config(number) for number in range(self.trials)], **arguments)

    def _script(self, seed: int, steps: int = 120) -> list[Step]:
        rng = random.Random(f"history/{seed}")
        kinds = ["result"] * 40 + ["complete", "fail", "die", "remove"]
        return [
            Step(
                rng.randrange(self.trials),
                rng.choice(kinds),
                1.0 if seed % 3 else rng.choice((1.0, 1.0, 0.25, 2.0, 5.0)),
                {"score": rng.choice(VALUES)} if seed % 2 else {"score": rng.random()},
            )
            for _ in range(steps)
        ]


def _drawn(rng: random.Random) -> Callable[[SimulatedTrial], dict[str, Any]]:
    return lambda _trial: {"score": rng.choice(VALUES)}


def _constant(_trial: SimulatedTrial) -> dict[str, Any]:
    return {"score": 0.5}
