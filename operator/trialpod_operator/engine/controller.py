"""The experiment as schedulers see it, and what they decide about trials other than the one that reports.

Such decisions are queued while a method of the scheduler runs and carried out when it has returned. Each is recorded
with the step at which that happened, so that a replay carries out the recorded ones, there, and drops its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.schedulers.trial_scheduler import Exploit, TrialView
from trialpod_operator.engine import attempts, exploits
from trialpod_operator.engine.changes import Change
from trialpod_operator.engine.decisions import note
from trialpod_operator.engine.outputs import Command
from trialpod_operator.engine.results import decide
from trialpod_operator.engine.trial import PAUSED, TERMINATED, Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine


class TotalResources:
    """What all trials together may use, as functions of Ray Tune's users ask for it.

    Args:
        resources: amounts by name.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        self._resources = resources

    def get_num_cpus(self) -> float:
        """Return the CPUs."""
        return self._resources.get("cpu", 0.0)

    def get_num_gpus(self) -> float:
        """Return the GPUs."""
        return self._resources.get("gpu", 0.0)


class Controller:
    """Implements `trialpod.tune.schedulers.trial_scheduler.ControllerView`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: list[Command] = []
        self._step = 0

    # -- what schedulers call -------------------------------------------------------------------------------------

    def get_trials(self) -> Sequence[Trial]:
        """Return all trials in order of creation; not to be changed."""
        return self._engine.state.get_trials()

    def get_trial(self, trial_id: str) -> Trial | None:
        """Return one trial."""
        return self._engine.state.trials.get(trial_id)

    def get_live_trials(self) -> list[Trial]:
        """Return the trials that have not ended, in order of creation."""
        return [trial for trial in self._engine.state.get_trials() if not trial.ended]

    def has_resources_for_trial(self, trial: TrialView) -> bool:
        """Return whether a trial could start now: that is so for those that wait when the scheduler is asked."""
        known = self._trial(trial)
        return known.trial_id in self._engine.state.pending or known.trial_id in self._engine.state.paused

    @property
    def trial_executor(self) -> Controller:
        """What older schedulers ask for free resources."""
        return self

    def pending_trials(self) -> Iterable[Trial]:
        """Return the trials that may start now, first come first."""
        return iter(self._engine.state.pending.values())

    def paused_trials(self) -> Iterable[Trial]:
        """Return the paused trials, first come first."""
        return iter(self._engine.state.paused.values())

    def running_trials(self) -> list[Trial]:
        """Return the running trials in order of creation."""
        return self._engine.state.running_trials()

    @property
    def _resource_updater(self) -> TotalResources:
        return TotalResources(self.total_resources())

    def total_resources(self) -> dict[str, float]:
        """Return what all trials together may use at once; empty when that is not known."""
        return dict(self._engine.state.flags.resources)

    def resources(self, trial: TrialView) -> dict[str, float]:
        """Return what the trial's next attempt is given."""
        known = self._trial(trial)
        return dict(known.resources) if known.resources else dict(self._engine.resources_of(known.config))

    def stop_trial(self, trial: TrialView, reason: dict[str, Any] | None = None) -> None:
        """End another trial."""
        self._add("stop", self._trial(trial), reason)

    def exploit_paused(self, trial: TrialView, exploit: Exploit, reason: dict[str, Any] | None = None) -> bool:
        """Give a paused trial another config and starting point; return whether that is possible."""
        known = self._trial(trial)
        if not _pauses(known):
            return False
        change, _ = exploits.resolve(self._engine, known, exploit)
        if change is None:
            return False
        self._add("exploit", known, reason, change)
        return True

    def set_config(self, trial: TrialView, config: dict[str, Any], tag: str = "") -> None:
        """Give a trial that was never started another config.

        Raises:
            InvalidInputError: the config cannot be stored.
        """
        known = self._trial(trial)
        try:
            params = self._engine.encode_params(config)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"the new config of trial {known.trial_id} cannot be stored: {error}") from error
        self._add("config", known, None, Change(known.trial_id, params, tag))

    def set_resources(self, trial: TrialView, resources: dict[str, float]) -> None:
        """Give the trial's next attempt other resources.

        Raises:
            InvalidInputError: an amount is not a number of 0 or more.
        """
        for name, amount in resources.items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf"):
                raise InvalidInputError(f"resources: {name}: {amount!r} is not an amount; use 0 or more")
        self._add("resources", self._trial(trial), None, resources={k: float(v) for k, v in resources.items()})

    def _trial(self, trial: TrialView) -> Trial:
        known = self._engine.state.trials.get(trial.trial_id)
        if known is None:
            raise InvalidInputError(f"there is no trial {trial.trial_id}")
        return known

    def _add(
        self,
        kind: Any,
        trial: Trial,
        reason: dict[str, Any] | None,
        change: Change | None = None,
        resources: dict[str, float] | None = None,
    ) -> None:
        found = dict(reason) if reason is not None else dict(self._engine.ask(self._engine.scheduler.reason) or {})
        evidence = {"source": "scheduler", **found}
        self._queue.append(Command(0, kind, trial.trial_id, evidence, change, resources or {}))

    # -- what the engine calls ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Another event is applied."""
        self._step = 0
        self._queue.clear()

    def carry_out(self, now: float, *, rest: bool = False) -> None:
        """Carry out what the scheduler has decided; in a replay, what is recorded for this step.

        Args:
            now: seconds since the epoch.
            rest: this is the last step, so everything that is recorded must be done.
        """
        self._step += 1
        recorded, queue = self._engine.recorded, self._queue
        if recorded is not None:
            done = len(self._engine.outputs.commands)
            queue.clear()
            queue += [command for command in recorded.commands[done:] if rest or command.at <= self._step]
        if not queue:
            return
        commands, self._queue = queue, []
        for command in commands:
            if self._apply(command, now) or recorded is not None:
                command.at = self._step if recorded is None else command.at
                self._engine.outputs.commands.append(command)

    def _apply(self, command: Command, now: float) -> bool:
        """Do it, and return whether it changed anything."""
        trial = self._engine.state.trials[command.trial_id]
        if trial.ended or trial.completion_told:
            return False
        match command.kind:
            case "stop":
                return self._stop(trial, command.reason, now)
            case "exploit":
                return self._exploit(trial, command, now)
            case "resources":
                return self._resize(trial, command, now)
            case "config":
                return self._configure(trial, command, now)

    def _stop(self, trial: Trial, reason: dict[str, Any], now: float) -> bool:
        engine = self._engine
        if trial.running:
            if trial.decision == "stop":
                return False
            decide(engine, trial, "stop", reason, now)
        trial.completion_told = True
        engine.tell(engine.search.on_trial_stopped, trial.trial_id, trial.last_result or None)
        if not trial.running:
            trial.stopped = True
            note(trial, now, "stop", reason)
            attempts.end_trial(engine, trial, TERMINATED, now)
        return True

    def _exploit(self, trial: Trial, command: Command, now: float) -> bool:
        if not _pauses(trial) or command.change is None:
            return False
        engine = self._engine
        engine.state.plant(trial, command.change, trial.planted)
        note(trial, now, "exploit", exploits.evidence(command.change, command.reason))
        if not trial.running:
            exploits.enforce(engine, trial)
        return True

    def _configure(self, trial: Trial, command: Command, now: float) -> bool:
        change = command.change
        if change is None or trial.attempt:
            return False
        trial.params = change.params
        if change.tag:
            trial.first_tag = trial.first_tag or trial.tag
            trial.tag = change.tag
        note(trial, now, "config", command.reason)
        return True

    def _resize(self, trial: Trial, command: Command, now: float) -> bool:
        if trial.resources == command.resources:
            return False
        trial.resources = command.resources
        reason = {**command.reason, "source": "resources", "resources": command.resources}
        if trial.running and trial.decision is None:
            decide(self._engine, trial, "pause", reason, now)
        else:
            note(trial, now, "resources", reason)
        return True


def _pauses(trial: Trial) -> bool:
    return trial.status == PAUSED or (trial.running and trial.decision == "pause")
