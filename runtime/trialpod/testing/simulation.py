"""An experiment without processes: trials that report what a script says, decided on by a real scheduler.

It stands in for the engine as far as schedulers can tell, and is the `ControllerView` that they get.

Invariants:

* Deterministic: the same scheduler, script and arguments give the same log.
* Actions that a scheduler asks for take effect when its method has returned.
* With ``batched`` results reach the scheduler as late as its horizons allow; without, each at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trialpod.protocol.messages import CheckpointInfo
from trialpod.tune.schedulers.trial_scheduler import Exploit, TrialScheduler, TrialView, learns_of_own_stops

LIVE = ("PENDING", "RUNNING", "PAUSED")


@dataclass
class SimulatedTrial:
    """One trial; a `TrialView`."""

    trial_id: str
    config: dict[str, Any]
    tag: str
    status: str = "PENDING"
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: CheckpointInfo | None = None
    resources: dict[str, float] = field(default_factory=lambda: {"cpu": 1.0})
    iteration: int = 0
    time: float = 0.0
    waiting: list[dict[str, Any]] = field(default_factory=list)  # results that the scheduler has not seen yet
    next_checkpoint: int = 0


@dataclass(frozen=True)
class Step:
    """One thing that happens to a trial, if it runs then.

    `kind` is "result", "complete" (a last result with ``done``), "fail" (and retry), "die" (and no retry) or "remove"
    (a user stops the trial, unless it runs).
    """

    trial: int
    kind: str = "result"
    advance: float = 1.0  # of the time attribute
    metrics: dict[str, Any] = field(default_factory=dict)


class SimulatedExperiment:
    """Trials, a scheduler and as many places as `slots`; a `ControllerView`."""

    def __init__(
        self,
        make: Callable[[], TrialScheduler],
        configs: Sequence[dict[str, Any]],
        *,
        slots: int | None = None,
        lazily: bool = False,
        batched: bool = False,
        restarts: bool = False,
        checkpoints: bool = True,
        cpus: float = 16.0,
    ) -> None:
        """Start the experiment: the first trials are running when this returns.

        Args:
            make: makes the scheduler, each time with the same arguments.
            configs: of the trials, in order of creation.
            slots: how many may run at once; None is all.
            lazily: whether a trial is created only when there is room for it, as the engine does, or all at first.
            batched: whether results are held back until the trial meets a horizon.
            restarts: whether the scheduler is replaced by a new one with its state before everything that happens.
            checkpoints: whether trials save a checkpoint where the scheduler wants one and when they are paused.
            cpus: what `total_resources` says.
        """
        self._make, self._restarts, self._batched, self._checkpoints = make, restarts, batched, checkpoints
        self._slots, self._lazily, self._cpus = slots, lazily, cpus
        self._configs = list(configs)
        self._actions: list[tuple[str, SimulatedTrial, Any]] = []
        self.scheduler = make()
        self.trials: list[SimulatedTrial] = []
        self.log: list[tuple[str, str, Any]] = []
        """What was decided: trial, what, and the reason or the new config."""
        self._fill()

    def get_trials(self) -> Sequence[TrialView]:
        """Return all trials in order of creation."""
        return self.trials

    def get_trial(self, trial_id: str) -> TrialView | None:
        """Return one trial."""
        return next((trial for trial in self.trials if trial.trial_id == trial_id), None)

    def get_live_trials(self) -> Sequence[TrialView]:
        """Return the trials that have not ended."""
        return [trial for trial in self.get_trials() if trial.status in ("PENDING", "RUNNING", "PAUSED")]

    def has_resources_for_trial(self, trial: TrialView) -> bool:
        """Return whether a trial could start now."""
        return trial.status in ("PENDING", "PAUSED")

    def pending_trials(self) -> Iterable[TrialView]:
        """Return the trials that could start now."""
        return iter(self._with_status("PENDING"))

    def paused_trials(self, where: Callable[[TrialView], bool] | None = None) -> Iterable[TrialView]:
        """Return the paused trials."""
        return filter(where, self._with_status("PAUSED"))

    def running_trials(self) -> Iterable[TrialView]:
        """Return the running trials."""
        return iter(self._with_status("RUNNING"))

    def total_resources(self) -> dict[str, float]:
        """Return what all trials together may use."""
        return {"cpu": self._cpus}

    def resources(self, trial: TrialView) -> dict[str, float]:
        """Return what the trial's next attempt is given."""
        return dict(self._own(trial).resources)

    def stop_trial(self, trial: TrialView, reason: dict[str, Any] | None = None) -> None:
        """End another trial."""
        self._actions.append(("stop", self._own(trial), self.scheduler.reason() if reason is None else reason))

    def exploit_paused(self, trial: TrialView, exploit: Exploit, reason: dict[str, Any] | None = None) -> bool:
        """Let a paused trial continue as `exploit` says."""
        own, source = self._own(trial), self.get_trial(exploit.source)
        if own.status != "PAUSED" or source is None or source.checkpoint is None:
            return False
        self._actions.append(("exploit", own, exploit))
        return True

    def set_config(self, trial: TrialView, config: dict[str, Any], tag: str = "") -> None:
        """Give a trial that was never started another config."""
        self._actions.append(("config", self._own(trial), (config, tag)))

    def set_resources(self, trial: TrialView, resources: dict[str, float]) -> None:
        """Give the trial's next attempt other resources."""
        self._actions.append(("resources", self._own(trial), resources))

    def play(self, script: Iterable[Step]) -> None:
        """Let the steps happen in turn; those of trials that do not run are left out."""
        for step in script:
            if step.trial < len(self.trials):
                self._play(self.trials[step.trial], step)

    def flush(self) -> None:
        """Let the scheduler see all results that were held back."""
        for trial in self.trials:
            self._deliver(trial)
        self._fill()

    def finish(self, length: float, metric: Callable[[SimulatedTrial], dict[str, Any]], limit: int = 100_000) -> int:
        """Let all trials run to their end, in turn.

        Args:
            length: a trial ends by itself at this time.
            metric: what a trial reports.
            limit: most results.

        Returns:
            How many trials were left paused when nothing could happen any more; they are stopped, as the engine does.

        Raises:
            AssertionError: there were more results than `limit`.
        """
        left = results = 0
        while any(trial.status in LIVE for trial in self.trials):
            running = self._with_status("RUNNING")
            if not running:
                stuck = next(trial for trial in self.trials if trial.status in LIVE)
                left += 1
                self._end(stuck)
            for trial in running:
                if trial.status == "RUNNING":
                    results += 1
                    assert results <= limit, f"no end in sight after {limit} results"
                    kind = "complete" if trial.time + 1 >= length else "result"
                    self._play(trial, Step(self.trials.index(trial), kind, 1.0, metric(trial)))
            self.flush()
        return left

    def decisions(self) -> dict[str, list[tuple[str, Any]]]:
        """Return the log by trial."""
        found: dict[str, list[tuple[str, Any]]] = {trial.trial_id: [] for trial in self.trials}
        for trial_id, what, detail in self.log:
            found[trial_id].append((what, detail))
        return found

    def _play(self, trial: SimulatedTrial, step: Step) -> None:
        if step.kind == "remove":
            if trial.status in ("PENDING", "PAUSED"):
                self._end(trial)
            return
        if trial.status != "RUNNING":
            return
        if step.kind in ("fail", "die"):
            self._fail(trial, retry=step.kind == "fail")
            return
        trial.iteration += 1
        trial.time += step.advance
        result = {"training_iteration": trial.iteration, "time_total_s": trial.time, **step.metrics}
        trial.waiting.append(result)
        met = self._meets(trial, result)
        if met and self.scheduler.saves_at_horizon:
            self._save(trial, result)
        if step.kind == "complete":
            last = trial.waiting.pop()
            self._deliver(trial)
            if trial.status == "RUNNING":
                trial.last_result = last
                self._end(trial, last)
        elif met or not self._batched:
            self._deliver(trial)
        self._fill()

    def _meets(self, trial: SimulatedTrial, result: dict[str, Any]) -> bool:
        self._restart()
        horizons = self.scheduler.horizons(trial)
        return any(
            isinstance(value := result.get(horizon.attr), (int, float)) and not value < horizon.at
            for horizon in horizons
        )

    def _deliver(self, trial: SimulatedTrial) -> None:
        while trial.waiting and trial.status == "RUNNING":
            result = trial.waiting.pop(0)
            early = bool(trial.waiting) or not self._meets(trial, result)
            self._restart()
            trial.last_result = result
            decision = self.scheduler.on_trial_result(self, trial, dict(result))
            what = decision if isinstance(decision, str) else "EXPLOIT"
            assert not early or what == "CONTINUE", f"{what} before the horizon of {trial.trial_id} at {result}"
            if what == "CONTINUE":
                self._act()
                continue
            reason = self.scheduler.reason()
            json.dumps(reason, allow_nan=False)
            self.log.append((trial.trial_id, what, reason))
            trial.waiting.clear()
            if isinstance(decision, Exploit):
                self._exploit(trial, decision)
            elif decision == "STOP":
                trial.status = "TERMINATED"
                if learns_of_own_stops(self.scheduler):
                    self.scheduler.on_trial_complete(self, trial, dict(result))
            elif decision == "PAUSE":
                trial.status = "PAUSED"
                self._save(trial, result)
            self._act()

    def _fail(self, trial: SimulatedTrial, *, retry: bool) -> None:
        self._deliver(trial)
        if trial.status != "RUNNING":
            return
        self._restart()
        self.scheduler.on_trial_error(self, trial)
        trial.status = "PENDING" if retry else "ERROR"
        if retry:
            self._return(trial)
            self.scheduler.on_trial_add(self, trial)
        self._act()
        self._fill()

    def _end(self, trial: SimulatedTrial, last: dict[str, Any] | None = None) -> None:
        """End a trial: completed with its last result, or stopped from outside."""
        self._restart()
        trial.status = "TERMINATED"
        if last is None:
            self.scheduler.on_trial_remove(self, trial)
        else:
            self.scheduler.on_trial_complete(self, trial, last)
        self._act()
        self._fill()

    def _exploit(self, trial: SimulatedTrial, exploit: Exploit) -> None:
        source = self._own_by_id(exploit.source)
        assert source.checkpoint is not None, f"{exploit.source} has no checkpoint to resume from"
        json.dumps(exploit.config)
        trial.config, trial.tag = exploit.config, exploit.tag or trial.tag
        trial.checkpoint = source.checkpoint
        trial.status = "PENDING"
        self._return(trial)
        self.log.append((trial.trial_id, "NEW_CONFIG", exploit.config))

    def _return(self, trial: SimulatedTrial) -> None:
        """Set the trial back to its newest checkpoint."""
        trial.iteration = trial.checkpoint.iteration if trial.checkpoint is not None else 0
        trial.time = float(trial.checkpoint.metrics["time_total_s"]) if trial.checkpoint is not None else 0.0

    def _save(self, trial: SimulatedTrial, result: dict[str, Any]) -> None:
        if not self._checkpoints:
            return
        trial.checkpoint = CheckpointInfo(
            name=f"checkpoint_{trial.next_checkpoint:06d}",
            index=trial.next_checkpoint,
            iteration=trial.iteration,
            metrics={**result, "time_total_s": trial.time},
            attempt=1,
        )
        trial.next_checkpoint += 1

    def _act(self) -> None:
        actions, self._actions = self._actions, []
        for kind, trial, detail in actions:
            if kind == "stop" and trial.status in LIVE:
                self.log.append((trial.trial_id, "STOPPED", detail))
                trial.status = "TERMINATED"
                trial.waiting.clear()
            elif kind == "exploit" and trial.status == "PAUSED":
                self._exploit(trial, detail)
                trial.status = "PAUSED"
            elif kind == "config" and trial.status == "PENDING" and not trial.iteration:
                trial.config, trial.tag = detail[0], detail[1] or trial.tag
                self.log.append((trial.trial_id, "CONFIG", detail[0]))
            elif kind == "resources" and trial.status in LIVE:
                self.log.append((trial.trial_id, "RESOURCES", detail))
                trial.resources = detail
                if trial.status == "RUNNING":
                    if trial.last_result is not None and trial.last_result["training_iteration"] == trial.iteration:
                        self._save(trial, trial.last_result)  # as at any pause
                    trial.status = "PENDING"
                    trial.waiting.clear()
                    self._return(trial)

    def _fill(self) -> None:
        """Create and start trials as long as there is room."""
        while True:
            room = self._slots is None or len(self._with_status("RUNNING")) < self._slots
            wanted = not self._lazily or ((room or self.scheduler.time_slicing) and not self._with_status("PENDING"))
            if self._configs and wanted:
                self._create()
                continue
            if not room:
                return
            self._restart()
            chosen = self.scheduler.choose_trial_to_run(self)
            self._act()
            if chosen is None:
                return
            trial = self._own(chosen)
            assert trial.status in ("PENDING", "PAUSED"), f"chose {trial.trial_id}, which is {trial.status}"
            if trial.status == "PAUSED":
                self._return(trial)
            trial.status = "RUNNING"
            self.log.append((trial.trial_id, "START", None))

    def _create(self) -> None:
        number = len(self.trials)
        trial = SimulatedTrial(f"t_{number:05d}", self._configs.pop(0), f"{number}_x")
        self.trials.append(trial)
        self._restart()
        self.scheduler.on_trial_add(self, trial)
        self._act()

    def _restart(self) -> None:
        if self._restarts:
            state = json.loads(json.dumps(self.scheduler.get_state(), allow_nan=False))
            self.scheduler = self._make()
            self.scheduler.set_state(state)

    def _with_status(self, status: str) -> list[SimulatedTrial]:
        return [trial for trial in self.trials if trial.status == status]

    def _own(self, trial: TrialView) -> SimulatedTrial:
        return self._own_by_id(trial.trial_id)

    def _own_by_id(self, trial_id: str) -> SimulatedTrial:
        return next(trial for trial in self.trials if trial.trial_id == trial_id)
