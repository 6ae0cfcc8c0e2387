"""The interface of trial schedulers, with Ray Tune's method names and signatures.

A scheduler sees the results of all trials and decides which continue. It runs inside the engine, so it must be
deterministic: no clock, no I/O, no global random source. Its state is data (`get_state`), so that it survives a
restart of the operator.

A decision about the trial that reported is the return value of `on_trial_result`. About other trials a scheduler
decides by `ControllerView.stop_trial`, `exploit_paused`, `set_config` and `set_resources`, within any of its methods
except `horizons` and `reason`. These take effect, in their order, when the method has returned; until then every view
shows the state from before.

Two methods have no counterpart in Ray:

* `horizons` tells at which result of a trial the scheduler decides next. Up to there the trial continues without
  waiting for an answer. The contract: for every result before the horizon `on_trial_result` would return CONTINUE
  whatever the other trials do. The default, every result, is always right.
* `reason` explains the latest decision as data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trialpod.protocol.messages import EVERY_RESULT, CheckpointInfo, Horizon
from trialpod.tune.plugins.phrases import evidence_text
from trialpod.tune.plugins.saved import SavedPlugIn
from trialpod.tune.plugins.state import is_ours


@dataclass(frozen=True, slots=True)
class Exploit:
    """The decision that a trial continues with another config, from the state of another trial (or its own).

    `on_trial_result` returns it for the trial that reported; `ControllerView.exploit_paused` takes it for others.
    Nothing is changed, and the trial continues, when the source has no committed checkpoint. `TrialView.config` and
    `tag` change when the trial's attempt has ended.

    Args:
        source: trial_id of the trial whose newest committed checkpoint is the starting point; a trial that names
            itself resumes from its own newest checkpoint.
        config: the complete new parameters (flat or nested as `TrialView.config` is).
        tag: the new experiment tag, "2_lr=0.01@perturbed[lr=0.012]"; empty keeps the old one.
    """

    source: str
    config: dict[str, Any]
    tag: str = ""


class TrialView(Protocol):
    """What a scheduler may know of a trial."""

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        ...

    @property
    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """The trial's parameters."""
        ...

    @property
    def last_result(self) -> dict[str, Any]:
        """Its latest result, flattened; empty before the first."""
        ...

    @property
    def checkpoint(self) -> CheckpointInfo | None:
        """Its newest committed checkpoint; what an `Exploit` of this trial would start from."""
        ...

    @property
    def tag(self) -> str:
        """Its experiment tag, "2_lr=0.01"."""
        ...


class ControllerView(Protocol):
    """What a scheduler may know of the experiment; Ray calls this argument ``tune_controller``."""

    def get_trials(self) -> Sequence[TrialView]:
        """Return all trials in order of creation."""
        ...

    def get_trial(self, trial_id: str) -> TrialView | None:
        """Return one trial."""
        ...

    def get_live_trials(self) -> Sequence[TrialView]:
        """Return the trials that have not ended, in order of creation."""
        ...

    def has_resources_for_trial(self, trial: TrialView) -> bool:
        """Return whether a trial could start now."""
        ...

    def pending_trials(self) -> Iterable[TrialView]:
        """Return the trials that could start now, first come first."""
        ...

    def paused_trials(self, where: Callable[[TrialView], bool] | None = None) -> Iterable[TrialView]:
        """Return the trials that a scheduler paused and that could continue, first come first.

        Args:
            where: leaves out trials for which it is false, before it is worked out whether they could continue.
        """
        ...

    def running_trials(self) -> Iterable[TrialView]:
        """Return the trials whose attempt has not ended, in order of creation; some may have a decision to pause."""
        ...

    def total_resources(self) -> dict[str, float]:
        """Return what all trials together may use at once; empty when that is not known."""
        ...

    def resources(self, trial: TrialView) -> dict[str, float]:
        """Return what the trial's next attempt is given ("cpu", "gpu", "memory" in bytes, ...)."""
        ...

    def stop_trial(self, trial: TrialView, reason: dict[str, Any] | None = None) -> None:
        """End another trial, whatever it is doing: a running one learns it at its next contact.

        One that has ended stays as it is. The scheduler is not called about it again (as after its own STOP), the
        search algorithm learns of the trial's completion. A trial that reports right now is stopped by returning
        STOP, not by this.

        Args:
            trial: the trial.
            reason: the evidence, as JSON data; None takes `TrialScheduler.reason`.
        """
        ...

    def exploit_paused(self, trial: TrialView, exploit: Exploit, reason: dict[str, Any] | None = None) -> bool:
        """Let a paused trial, or one that has to pause, continue as `exploit` says when it is chosen again.

        Returns:
            False, and nothing is changed, when the trial is neither, or the source has no committed checkpoint.
        """
        ...

    def set_config(self, trial: TrialView, config: dict[str, Any], tag: str = "") -> None:
        """Give a trial that was never started another config, when it is added (`TrialScheduler.on_trial_add`).

        One that has been started stays as it is.

        Args:
            trial: the trial.
            config: the complete new parameters.
            tag: the new experiment tag; empty keeps the old one.
        """
        ...

    def set_resources(self, trial: TrialView, resources: dict[str, float]) -> None:
        """Give the trial's next attempt other resources; a running one is paused for it and queued again at once."""
        ...


class TrialScheduler(SavedPlugIn):
    """Base class: subclasses override what they need.

    A subclass that decides by an `on_trial_result` of its own is asked at every result unless it also defines
    `horizons`. One that defines no `get_state` has its attributes pickled, in a script on the user's machine only.
    """

    KIND = "scheduler"

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    STOP = "STOP"
    NOOP = "NOOP"

    saves_at_horizon: bool = False
    """True when a checkpoint is to be committed with each result that meets a horizon, before the decision is asked
    for: class Trainables save one, and one reported by a function is waited for."""

    time_slicing: bool = False
    """True when the scheduler pauses trials in favour of waiting ones: the engine then always keeps one waiting."""

    pending_trials: int = 0
    """How many trials are to be made before there is a place for them, if their search algorithm takes no time."""

    needs_metric: bool = True
    """False when it compares no trials, so that an experiment needs no metric for it."""

    several_metrics: bool = False
    """True when it compares trials by several objectives; the experiment's come by its method `set_objectives`."""

    filled_rung: float | None = None
    """The rung that a trial reached with the result of the latest call of `on_trial_result`, None for no rung. All
    trials that reach a rung can be compared there: the search algorithm learns of it (`Searcher.on_trial_rung`)."""

    ABOUT: tuple[str, ...] = ()
    """For the table of the documentation: what happens to trials, and when to use it."""

    FILE_PARAMETERS: ClassVar[Mapping[str, str]] = {}
    """Arguments that name files of the user's machine -> the argument that takes the lines of the file in its place.
    An operator refuses the former, and a script or `trialpod submit` sends the latter (`plugins.file_parameters`)."""

    changes_configs: bool = False
    """True when trials continue with other parameters than the search algorithm proposed."""

    metric: str | None = None
    mode: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a class that decides in a way of its own be asked at every result."""
        super().__init_subclass__(**kwargs)
        if "on_trial_result" in vars(cls) and "horizons" not in vars(cls) and not is_ours(cls):
            cls.horizons = TrialScheduler.horizons  # type: ignore[method-assign]

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:
        """Return why it decided something, as a phrase: "asha: it reached max_t=9".

        Args:
            reason: what `reason` returned then, with the names of the scheduler and the rule, and its evidence.
        """
        rule = str(reason.get("rule", ""))
        about = " by the rule " + rule.replace("_", " ") if rule else ""
        return f"{reason.get('scheduler', 'the scheduler')}{about}{evidence_text(reason, ': ')}"

    @property
    def supports_buffered_results(self) -> bool:
        """True: results may arrive in batches, as late as `horizons` allow."""
        return True

    @property
    def _metric(self) -> str | None:
        """The metric, by the name that schedulers written for Ray use."""
        return self.metric

    @_metric.setter
    def _metric(self, metric: str | None) -> None:
        self.metric = metric

    @property
    def _mode(self) -> str | None:
        """The mode, by the name that schedulers written for Ray use."""
        return self.mode

    @_mode.setter
    def _mode(self, mode: str | None) -> None:
        self.mode = mode

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        """Take metric and mode from the experiment; return False when the scheduler has its own already.

        An experiment asks only for what the scheduler does not have, or has otherwise (`trialpod.tune.plugins.goal`).
        """
        if (self.metric and metric) or (self.mode and mode):
            return False
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when a trial is created, and again when a failed one is queued for a retry."""

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when an attempt of a trial failed, before a possible retry."""

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        """Return CONTINUE, PAUSE, STOP (or NOOP) or an `Exploit` for the trial that reported `result` (flattened).

        After an `Exploit` the attempt ends and the trial is PENDING, to be chosen like any other.
        """
        raise NotImplementedError

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Called when a running trial ended, also when this scheduler stopped it; `result` is its last.

        trialpod's own schedulers are not called for what they stopped themselves; see `learns_of_own_stops`.
        """

    def on_trial_stopped(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Called in place of `on_trial_complete` when others ended a running trial before its end.

        The user did, or the whole experiment ended. By default this is an end like any other: `on_trial_complete`.
        """
        self.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when a pending or paused trial is stopped from outside."""

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the trial to start next, a pending or a paused one, or None to start nothing now.

        By default the first pending trial, else the first paused one.
        """
        for trial in tune_controller.pending_trials():
            return trial
        for trial in tune_controller.paused_trials():
            return trial
        return None

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return where `trial` must next wait for a decision; an empty list means nowhere."""
        return [Horizon("training_iteration", EVERY_RESULT)]

    def reason(self) -> dict[str, Any]:
        """Return why the latest decision other than CONTINUE was made, as JSON data."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError

    def debug_string(self) -> str:
        """Return one line about the scheduler for people."""
        goal = f" metric={self.metric} mode={self.mode}" if self.metric else ""
        return f"Using {type(self).__name__}.{goal}"


def learns_of_own_stops(scheduler: TrialScheduler) -> bool:
    """Return whether `on_trial_complete` is called for a trial that the scheduler stopped itself.

    Ray does so for all schedulers; trialpod's own have noted it when they decided. A user's may be inside of one that
    wraps it.
    """
    base = getattr(scheduler, "base_scheduler", scheduler)
    return not type(base).__module__.startswith("trialpod.")
