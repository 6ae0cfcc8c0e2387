"""A hand-driven shell for the engine, and small algorithms whose decisions are easy to foresee."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, EndCause, Horizon, ReportAnswer
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialScheduler, TrialView
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine import events
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial

A = TypeVar("A", bound=Action)


class ListSearch(SearchAlgorithm):
    """Suggests t0, t1, t2, ... and notes what it is told. `at_once` limits the unfinished ones."""

    def __init__(self, num_samples: int = 1, at_once: int | None = None, shift: int = 0) -> None:
        self.num_samples = num_samples
        self.at_once = at_once
        self.shift = shift
        self.next = 0
        self.asked = 0
        self.live: list[str] = []
        self.heard: list[tuple[str, str, Any]] = []

    @property
    def total(self) -> int | None:
        return self.num_samples

    def set_num_samples(self, num_samples: int) -> None:
        self.num_samples = num_samples

    @property
    def finished(self) -> bool:
        return 0 <= self.num_samples <= self.next

    def next_suggestion(self) -> Suggestion | None:
        self.asked += 1
        if self.finished or (self.at_once is not None and len(self.live) >= self.at_once):
            return None
        number, self.next = self.next, self.next + 1
        self.live.append(f"t{number}")
        return Suggestion(f"t{number}", {"x": number + self.shift}, f"{number}_x={number + self.shift}")

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.heard.append(("result", trial_id, result.get("score")))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if trial_id in self.live:
            self.live.remove(trial_id)
        self.heard.append(("error" if error else "complete", trial_id, (result or {}).get("score")))

    def get_state(self) -> dict[str, Any]:
        return {"next": self.next, "asked": self.asked, "live": list(self.live)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.next, self.asked, self.live = state["next"], state["asked"], list(state["live"])


class Recorder(FIFOScheduler):
    """First in, first out, and notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        self.heard.append(("add", trial.trial_id))

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        self.heard.append(("error", trial.trial_id))

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        self.heard.append(("complete", trial.trial_id))

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        self.heard.append(("remove", trial.trial_id))

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        self.heard.append(("result", trial.trial_id))
        return self.CONTINUE


class TimeSlices(TrialScheduler):
    """Pauses a trial at every `every`-th iteration and continues with the one that ran least; counts its choices."""

    def __init__(self, every: int = 2, stop_at: int | None = None) -> None:
        self.every = every
        self.stop_at = stop_at
        self.ran: dict[str, int] = {}
        self.choices = 0

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        iteration = int(result.get("training_iteration", 0))
        self.ran[trial.trial_id] = iteration
        if self.stop_at is not None and iteration >= self.stop_at:
            return self.STOP
        return self.PAUSE if iteration % self.every == 0 else self.CONTINUE

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        self.choices += 1
        candidates = [*tune_controller.pending_trials(), *tune_controller.paused_trials()]
        return min(candidates, key=lambda trial: self.ran.get(trial.trial_id, 0), default=None)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        ran = self.ran.get(trial.trial_id, 0)
        return [Horizon("training_iteration", float((ran // self.every + 1) * self.every))]

    def reason(self) -> dict[str, Any]:
        return {"every": self.every}

    def get_state(self) -> dict[str, Any]:
        return {"ran": dict(self.ran), "choices": self.choices}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ran, self.choices = dict(state["ran"]), state["choices"]


class Halt(TrialScheduler):
    """Pauses every trial at iteration 1 for good, and starts pending ones only."""

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        return next(iter(tune_controller.pending_trials()), None)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Population(FIFOScheduler):
    """Uses all powers of a scheduler, in an order that looks random but is not; continues with what ran least."""

    time_slicing = True

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.count = 0
        self.ran: dict[str, int] = {}

    def draw(self, choices: int) -> int:
        self.count += 1
        return ((self.count + self.offset) * 2654435761 % 2**32 >> 16) % choices

    def exploit(self, controller: ControllerView) -> Exploit:
        trials = [one for one in controller.get_trials() if one.checkpoint is not None or self.draw(4) == 0]
        trials = trials or list(controller.get_trials())
        source = trials[self.draw(len(trials))]
        return Exploit(source.trial_id, {"x": self.count}, f"{self.count}@of[{source.trial_id}]")

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        self.ran[trial.trial_id] = int(result.get("training_iteration", 0))
        others = [one for one in tune_controller.get_trials() if one.trial_id != trial.trial_id]
        match self.draw(12):
            case 0 | 1 | 2:
                return self.exploit(tune_controller)
            case 3 | 4:
                return self.PAUSE
            case 5 if others:
                tune_controller.stop_trial(others[self.draw(len(others))], {"rule": "cut"})
            case 6:
                tune_controller.set_resources(trial, {"cpu": float(self.draw(3))})
            case 7 if others:
                tune_controller.set_resources(others[self.draw(len(others))], {"cpu": float(self.draw(3))})
                return self.PAUSE
            case 8:
                for one in tune_controller.running_trials():
                    tune_controller.exploit_paused(one, self.exploit(tune_controller))
                return Exploit(trial.trial_id, {"x": -self.count})
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        for one in tune_controller.paused_trials():
            if self.draw(4) == 0:
                tune_controller.stop_trial(one)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        for one in tune_controller.paused_trials():
            if self.draw(3) == 0:
                tune_controller.exploit_paused(one, self.exploit(tune_controller), {"rule": "paused"})
        candidates = [*tune_controller.pending_trials(), *tune_controller.paused_trials()]
        return min(candidates, key=lambda trial: self.ran.get(trial.trial_id, 0), default=None)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        return [Horizon()]

    def reason(self) -> dict[str, Any]:
        return {"scheduler": "population", "count": self.count}

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "ran": dict(self.ran)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count, self.ran = state["count"], dict(state["ran"])


class ScoreStopper(Stopper):
    """Stops a trial whose score reaches `trial`, and everything once one reaches `everything`."""

    def __init__(self, trial: float = 1e9, everything: float = 1e9) -> None:
        self.trial = trial
        self.everything = everything
        self.best = -1e9

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        score = result.get("score")
        if not isinstance(score, (int, float)):
            return False
        self.best = max(self.best, score)
        return bool(score >= self.trial)

    def stop_all(self) -> bool:
        return self.best >= self.everything

    def reason(self) -> dict[str, Any]:
        return {"stopper": "score", "best": self.best}

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best}

    def set_state(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


def result(iteration: int, score: Any = 0.0, **more: Any) -> dict[str, Any]:
    """One result of the usual form."""
    return {"training_iteration": iteration, "score": score, **more}


def raw(data: Any) -> msgspec.Raw:
    """One result as it comes over the wire."""
    return msgspec.Raw(metrics_encoder.encode(data))


def settings(**changes: Any) -> Settings:
    """Settings of an experiment that maximises `score`."""
    return Settings(**{"name": "e", "trainable_name": "train", "metric": "score", **changes})


def stored(value: Any) -> bytes:
    """Anything that the engine keeps or returns, as bytes to compare."""
    return msgspec.json.encode(value, enc_hook=lambda item: {name: getattr(item, name) for name in item.__slots__})


class Shell:
    """Applies events to an engine at a time that tests set, and keeps a journal of them."""

    def __init__(
        self,
        num_samples: int = 1,
        *,
        search: SearchAlgorithm | None = None,
        scheduler: TrialScheduler | None = None,
        stopper: Stopper | None = None,
        start: bool = True,
        **changes: Any,
    ) -> None:
        self.now = 1000.0
        self.engine = Engine(search or ListSearch(num_samples), scheduler, stopper)
        self.settings = settings(num_samples=num_samples, **changes)
        self.actions: list[Action] = []
        self.last: list[Action] = []
        self.journal: list[tuple[float, events.AnyEvent, Choices]] = []
        if start:
            self.apply(events.SettingsObserved(settings=self.settings))

    def apply(self, event: events.AnyEvent) -> list[Action]:
        self.last = self.engine.apply(event, self.now)
        self.actions += self.last
        self.journal.append((self.now, event, self.engine.choices))
        return self.last

    def replay(self, engine: Engine) -> Engine:
        """Play the journal on another engine."""
        for now, event, choices in self.journal:
            engine.apply(event, now, choices)
        return engine

    def trial(self, trial_id: str) -> Trial:
        return self.engine.state.trials[trial_id]

    def edit(self, **changes: Any) -> list[Action]:
        self.settings = msgspec.structs.replace(self.settings, **changes)
        return self.apply(events.SettingsObserved(settings=self.settings))

    def results(self, trial_id: str, *results: dict[str, Any], attempt: int = 0, first: int = 0) -> list[Action]:
        trial = self.trial(trial_id)
        return self.apply(
            events.ResultsReceived(
                trial_id=trial_id,
                attempt=attempt or trial.attempt,
                first=first or trial.current.received + 1,
                results=[raw(item) for item in results],
            )
        )

    def end(
        self, trial_id: str, cause: EndCause = "completed", error: str = "", attempt: int = 0, retry: bool = True
    ) -> list[Action]:
        end = AttemptEnd(cause=cause, error=error, retry=retry)
        attempt = attempt or self.trial(trial_id).attempt
        return self.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=end))

    def export_fails(self, trial_id: str) -> list[Action]:
        """The trial is complete, and then its model cannot be exported."""
        end = AttemptEnd(cause="failed", error="RuntimeError: no model", after_completion=True)
        return self.apply(events.AttemptEnded(trial_id=trial_id, attempt=self.trial(trial_id).attempt, end=end))

    def fail(self, trial_id: str, error: str = "worker 1: no", *, confirmed: bool = False) -> list[Action]:
        """One of the processes of the trial's attempt fails."""
        end, attempt = AttemptEnd(cause="failed", error=error), self.trial(trial_id).attempt
        return self.apply(events.FailureObserved(trial_id=trial_id, attempt=attempt, end=end, confirmed=confirmed))

    def checkpoint(self, trial_id: str, index: int, iteration: int) -> list[Action]:
        info = CheckpointInfo(
            name=f"checkpoint_{index:06d}",
            index=index,
            iteration=iteration,
            metrics={},
            attempt=self.trial(trial_id).attempt,
        )
        return self.apply(
            events.CheckpointsChanged(trial_id=trial_id, attempt=self.trial(trial_id).attempt, committed=[info])
        )

    def answer(self, trial_id: str, attempt: int = 0) -> ReportAnswer:
        return self.engine.answer(trial_id, attempt or self.trial(trial_id).attempt)

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.apply(events.TimerFired())

    def suspend(self) -> list[Action]:
        return self.apply(events.SuspendRequested())

    def resume(self) -> list[Action]:
        return self.apply(events.ResumeRequested())

    def stop(self, trial_id: str | None = None) -> list[Action]:
        return self.apply(events.StopRequested(trial_id=trial_id))

    def retry(self, from_scratch: bool = False) -> list[Action]:
        return self.apply(events.RetryRequested(from_scratch=from_scratch))

    def recover(self, *live: tuple[str, int]) -> list[Action]:
        return self.apply(events.Recovered(live=list(live)))

    def capacity(self, slots: int | None) -> list[Action]:
        return self.apply(events.CapacityObserved(slots=slots))

    def status(self, *trial_ids: str) -> list[str]:
        return [self.trial(trial_id).status for trial_id in trial_ids or self.engine.state.trials]

    def outcome(self) -> tuple[str, str]:
        assert self.engine.finished
        return self.engine.state.flags.state, self.engine.state.flags.message


def kinds(actions: Iterable[Action], kind: type[A]) -> list[A]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def starts(actions: Iterable[Action]) -> list[tuple[str, int]]:
    """What was started."""
    return [(action.trial.trial_id, action.attempt) for action in kinds(actions, StartAttempt)]
