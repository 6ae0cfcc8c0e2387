"""The experiment as schedulers see it, and a queue of what they decide about other trials than the one that reported.

Such decisions are queued while a method of the scheduler runs; `commands` carries them out when it has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from trialpod.errors import InvalidInputError
from trialpod.tune.schedulers.trial_scheduler import Exploit, TrialView
from trialpod.tune.schedulers.waiting_trials import Waiting
from trialpod_operator.engine import exploits
from trialpod_operator.engine.choices import Change, Command
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial


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
    """Implements `trialpod.tune.schedulers.trial_scheduler.ControllerView`.

    Args:
        state: the experiment's.
        encode_params: encodes configs.
        default_reason: returns the scheduler's reason for what it decides without giving one.
    """

    def __init__(
        self, state: State, encode_params: Callable[[Any], bytes], default_reason: Callable[[], dict[str, Any]]
    ) -> None:
        self._state = state
        self._encode_params = encode_params
        self._default_reason = default_reason
        self.queue: list[Command] = []
        """What was decided since the scheduler was called; the engine takes it."""
        self.resources_of: Callable[[dict[str, Any]], dict[str, float]] = lambda _config: {}
        """What a trial with this config is given, as long as the scheduler has not changed that."""
        self.admits: Callable[[Trial], bool] = lambda _trial: True
        """Whether the budget lets a paused trial run on."""

    def get_trials(self) -> Sequence[Trial]:
        """Return all trials in order of creation; not to be changed."""
        return self._state.get_trials()

    def get_trial(self, trial_id: str) -> Trial | None:
        """Return one trial."""
        return self._state.trials.get(trial_id)

    def get_live_trials(self) -> list[Trial]:
        """Return the trials that have not ended, in order of creation."""
        return [trial for trial in self._state.get_trials() if not trial.ended]

    def has_resources_for_trial(self, trial: TrialView) -> bool:
        """Return whether a trial could start now: that is so for those that wait when the scheduler is asked."""
        known = self._trial(trial)
        return known.trial_id in self._state.pending or (known.trial_id in self._state.paused and self.admits(known))

    @property
    def trial_executor(self) -> Controller:
        """What older schedulers ask for free resources."""
        return self

    def pending_trials(self) -> Iterable[Trial]:
        """Return the trials that may start now, first come first."""
        return iter(self._state.pending.values())

    def paused_trials(self, where: Callable[[Trial], bool] | None = None) -> Iterable[Trial]:
        """Return the paused trials that the budget lets run on, first come first; `where` leaves out others."""
        paused: Iterable[Trial] = self._state.paused.values()
        return filter(self.admits, paused if where is None else filter(where, paused))

    def waiting_changes(self, reader: object) -> tuple[bool, list[Waiting]]:
        """Return which trials changed their queue, or got or lost their checkpoint, since the reader last asked.

        Returns:
            True and all trials that wait when it asks for the first time, else False and those that changed.
        """
        state = self._state
        changed = state.changes.take(reader)
        if changed is None:
            return True, [self._waiting(trial) for trial in (*state.pending.values(), *state.paused.values())]
        return False, [self._waiting(trial) for trial in changed]

    def _waiting(self, trial: Trial) -> Waiting:
        number = self._state.changes.pauses.get(trial.trial_id)
        if number is not None:
            return Waiting(trial, "paused", number)
        return Waiting(trial, "pending" if trial.trial_id in self._state.pending else "")

    def running_trials(self) -> list[Trial]:
        """Return the running trials in order of creation."""
        return self._state.running_trials()

    @property
    def _resource_updater(self) -> TotalResources:
        return TotalResources(self.total_resources())

    def total_resources(self) -> dict[str, float]:
        """Return what all trials together may use at once; empty when that is not known."""
        return dict(self._state.flags.resources)

    def resources(self, trial: TrialView) -> dict[str, float]:
        """Return what the trial's next attempt is given."""
        known = self._trial(trial)
        return dict(known.resources) if known.resources else dict(self.resources_of(known.config))

    def stop_trial(self, trial: TrialView, reason: dict[str, Any] | None = None) -> None:
        """End another trial."""
        self._add("stop", self._trial(trial), reason)

    def exploit_paused(self, trial: TrialView, exploit: Exploit, reason: dict[str, Any] | None = None) -> bool:
        """Give a paused trial another config and starting point; return whether that is possible."""
        known = self._trial(trial)
        change = exploits.resolve(self._state, known, exploit, self._encode_params) if known.pauses else None
        if not isinstance(change, Change):
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
            params = self._encode_params(config)
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
        known = self._state.trials.get(trial.trial_id)
        if known is None:
            raise InvalidInputError(f"there is no trial {trial.trial_id}")
        return known

    def _add(
        self,
        kind: Literal["stop", "exploit", "resources", "config"],
        trial: Trial,
        reason: dict[str, Any] | None,
        change: Change | None = None,
        resources: dict[str, float] | None = None,
    ) -> None:
        found = reason if reason is not None else self._default_reason()
        self.queue.append(Command(0, kind, trial.trial_id, {"source": "scheduler", **found}, change, resources or {}))
