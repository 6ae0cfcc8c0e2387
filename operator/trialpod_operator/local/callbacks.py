"""Tells a script's callbacks and progress reporter what happens, in Ray Tune's order of hooks.

One step is one event of the engine. Within a step: ``on_step_begin``, then for what followed from the event
``on_trial_start`` and ``on_trial_restore``, ``on_trial_result`` for each result, ``on_checkpoint`` and
``on_trial_save`` for each checkpoint, ``on_trial_recover``, ``on_trial_error`` or ``on_trial_complete``, and
``on_step_end``. Everything is in the journal before a callback receives it.

Invariants:

* A callback is called at most once for an event: a replay of the journal calls nothing, so an event that was being
  delivered when this process died is not repeated.
* What a callback remembers (`get_state`) is saved every `MIN_SAVE_INTERVAL_S` and at the end. After a crash it is
  given back what was saved last, which may lack the events of these last seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.values import open_leniently
from trialpod.storage.base import storage_error
from trialpod.storage.layout import CALLBACKS_FILE, LOG_FILE, TRIALPOD_DIR
from trialpod.tune.callback import Callback
from trialpod.tune.callback_list import CallbackError, CallbackList
from trialpod.tune.result import Metrics, checkpoints_in
from trialpod.tune.trial import Trial as TrialView
from trialpod_operator.engine.actions import Action, ResultsApplied, TrialCreated, TrialEnded, TrialRequeued
from trialpod_operator.engine.events import AnyEvent, AttemptStarted, CheckpointsChanged, ResultsReceived
from trialpod_operator.engine.trial import ERROR, PENDING, RUNNING, Trial
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.trial_files import complete_result

if TYPE_CHECKING:
    from trialpod.tune.outcomes import TrialOutcome

logger = logging.getLogger(__name__)

MIN_SAVE_INTERVAL_S = 10.0
"""Minimum interval between two writes of the callbacks' state."""


class Callbacks:
    """The callbacks of one run of an experiment. Bound to the journaled engine before it is used.

    Args:
        callbacks: in the order in which they are called.
        directory: the experiment's.
        stop: for `Callback.setup`.
        num_samples: for `Callback.setup`.
        time_budget_s: seconds, for `Callback.setup`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        directory: Path,
        *,
        stop: Any = None,
        num_samples: int | None = None,
        time_budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hooks = CallbackList(callbacks)
        self._state_file = directory / TRIALPOD_DIR / CALLBACKS_FILE
        self._limits = {
            "stop": {} if stop is None else stop,
            "num_samples": num_samples,
            "time_budget_s": time_budget_s,
        }
        self._clock = clock
        self._saved_at = clock()
        self._iteration = 0
        self._views: dict[str, TrialView] = {}
        self._facts: dict[str, _Facts] = {}
        self._checkpoints: dict[str, int] = {}  # trial_id -> index of the latest that was delivered
        self._journaled: JournaledEngine | None = None
        self._ended = False
        self.trials: list[TrialView] = []
        """All trials so far, in the order in which they were made."""

    def begin(self, journaled: JournaledEngine) -> None:
        """Set the callbacks up, with what an earlier run saved of them.

        Raises:
            CallbackError: one of them raised an exception.
        """
        self._journaled = journaled
        total = journaled.engine.search.total
        self._hooks.setup(**self._limits, total_num_samples=total)
        for trial in journaled.engine.state.trials.values():
            self._add(trial)
            if trial.checkpoints:
                self._checkpoints[trial.trial_id] = trial.checkpoints[-1].index
        if self._state_file.exists():
            self._hooks.set_state(self._load())

    @contextlib.contextmanager
    def step(self, event: AnyEvent) -> Iterator[None]:
        """Call what belongs around the handling of an event, and what the event itself tells."""
        self._iteration += 1
        self._call("on_step_begin")
        yield
        match event:
            case AttemptStarted():
                self._started(event)
            case ResultsReceived() | CheckpointsChanged() if event.committed:
                self._committed(event.trial_id, event.attempt, event.committed)
        self._call("on_step_end")
        if self._clock() - self._saved_at >= MIN_SAVE_INTERVAL_S:
            self._save()

    def action(self, action: Action) -> None:
        """Call what belongs to something that the engine decided."""
        match action:
            case TrialCreated(trial=trial):
                self._add(trial)
            case ResultsApplied(trial=trial) if self._hooks.wants("on_trial_result"):
                self._results(trial, action.opened or action.results)
            case TrialEnded(trial=trial):
                failed = trial.status == ERROR
                with self._shown_as(trial, ERROR if failed else RUNNING):
                    self._call("on_trial_error" if failed else "on_trial_complete", trial)
            case TrialRequeued(trial=trial, why="failed" | "disrupted"):
                with self._shown_as(trial, PENDING):
                    self._call("on_trial_recover", trial)

    def end(self) -> None:
        """Call ``on_experiment_end``, once, and save what the callbacks want to remember.

        Raises:
            CallbackError: a callback raised an exception, or its state cannot be pickled; all were called.
            StorageError: the state cannot be written.
        """
        if self._ended or self._journaled is None:
            return
        self._ended = True
        try:
            self._hooks.end(trials=self.trials)
        except BaseException:
            try:
                self._save()
            except (CallbackError, StorageError) as error:
                logger.error("%s", error)  # beside the one that is raised
            raise
        self._save()

    # -- inside --

    def _add(self, trial: Trial) -> None:
        if trial.trial_id not in self._views and self._journaled is not None:
            facts = self._facts[trial.trial_id] = _Facts(trial, self._journaled)
            view = TrialView(cast("TrialOutcome", facts))
            self._views[trial.trial_id] = view
            self.trials.append(view)

    def _call(self, hook: str, trial: Trial | None = None, **more: Any) -> None:
        if not self._hooks.wants(hook):
            return
        if trial is not None:
            more["trial"] = self._views[trial.trial_id]
        self._hooks.call(hook, iteration=self._iteration, trials=self.trials, **more)

    @contextlib.contextmanager
    def _shown_as(self, trial: Trial, status: str) -> Iterator[None]:
        """Let callbacks see the status that Ray's see: that before the change which they are called for."""
        facts = self._facts[trial.trial_id]
        facts.shown_status = status
        try:
            yield
        finally:
            facts.shown_status = None

    def _trial(self, trial_id: str) -> Trial | None:
        return self._journaled.engine.state.trials.get(trial_id) if self._journaled is not None else None

    def _started(self, event: AttemptStarted) -> None:
        trial = self._trial(event.trial_id)
        if trial is None or trial.attempt != event.attempt or not trial.running:
            return
        with self._shown_as(trial, PENDING):
            self._call("on_trial_start", trial)
        if trial.checkpoint is not None and not under_ray():  # Ray has the hook, and never calls it
            self._call("on_trial_restore", trial)

    def _results(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        static = {**trial.attempt_fields, "config": open_leniently(trial.params)}
        facts = self._facts[trial.trial_id]
        try:
            for result in results:
                facts.delivered = {**result, **static}
                self._hooks.result(
                    Metrics(facts.delivered),
                    iteration=self._iteration,
                    trials=self.trials,
                    trial=self._views[trial.trial_id],
                )
        finally:
            facts.delivered = None

    def _committed(self, trial_id: str, attempt: int, infos: list[CheckpointInfo]) -> None:
        trial = self._trial(trial_id)
        if trial is None or trial.attempt != attempt:
            return
        if not (self._hooks.wants("on_checkpoint") or self._hooks.wants("on_trial_save")):
            return
        place = self._views[trial_id].checkpoint_place
        for info in sorted(infos, key=lambda info: info.index):
            if info.index <= self._checkpoints.get(trial_id, -1):
                continue
            self._checkpoints[trial_id] = info.index
            with self._saved_up_to(trial, info):
                if self._hooks.wants("on_checkpoint"):
                    self._call("on_checkpoint", trial, checkpoint=checkpoints_in(place, [info])[0][0])
                if any(kept.index == info.index for kept in trial.checkpoints):
                    self._call("on_trial_save", trial)

    @contextlib.contextmanager
    def _saved_up_to(self, trial: Trial, info: CheckpointInfo) -> Iterator[None]:
        """Hide the later checkpoints of the same event."""
        facts = self._facts[trial.trial_id]
        facts.saved_up_to = info.index
        try:
            yield
        finally:
            facts.saved_up_to = None

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            states: dict[str, dict[str, Any]] = pickle.loads(self._state_file.read_bytes())
        except Exception as error:
            raise StorageError(
                f"{self._state_file} cannot be read ({type(error).__name__}: {error}); remove it to continue without "
                "what the callbacks remembered"
            ) from error
        return states

    def _save(self) -> None:
        self._saved_at = self._clock()
        data = self._hooks.pickled_state()
        if not data:
            return
        temporary = self._state_file.with_suffix(".tmp")
        try:
            temporary.write_bytes(data)
            os.replace(temporary, self._state_file)
        except OSError as error:
            raise storage_error(error, "cannot write", self._state_file, len(data)) from error


class _Facts:
    """A trial of the engine with the attributes of a `TrialOutcome`, each computed when it is asked for."""

    def __init__(self, trial: Trial, journaled: JournaledEngine) -> None:
        self._trial = trial
        self._journaled = journaled
        self.trial_id = trial.trial_id
        self.created_at = trial.created_at
        self.delivered: dict[str, Any] | None = None
        """The result that callbacks receive right now; later ones of the same batch are not theirs to see yet."""
        self.shown_status: str | None = None
        self.saved_up_to: int | None = None
        """The index of the checkpoint that callbacks hear of right now."""

    @property
    def name(self) -> str:
        return self._journaled.trial_name(self._trial)

    @property
    def trainable_name(self) -> str:
        return self._journaled.plan.settings.trainable_name

    @property
    def experiment_tag(self) -> str:
        return self._trial.tag

    @property
    def config(self) -> dict[str, Any]:
        return cast("dict[str, Any]", open_leniently(self._trial.params))

    @property
    def status(self) -> str:
        return self.shown_status or self._trial.status

    @property
    def path(self) -> str:
        return str(self._journaled.files.path(self._trial))

    @property
    def last_result(self) -> dict[str, Any] | None:
        if self.delivered is not None:
            return self.delivered
        return complete_result(self._trial) if self._trial.result else None

    @property
    def error(self) -> str:
        return self._trial.error

    @property
    def traceback(self) -> str:
        return self._trial.traceback

    @property
    def failures(self) -> int:
        return self._trial.failures

    @property
    def resources(self) -> dict[str, float]:
        return self._trial.resources or self._journaled.plan.resources_for(self.config)

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        found, last = self._trial.checkpoints, self.saved_up_to
        return found if last is None else [info for info in found if info.index <= last]

    @property
    def checkpoint_uri(self) -> str:
        return self._journaled.checkpoint_uri(self._trial)


class LogLinks(Callback):
    """Gives a trial's log the names of ``RunConfig(log_to_file=...)``, as symbolic links, when the trial starts.

    Args:
        names: of the links; the same one twice is made once.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = [name for name in dict.fromkeys(names) if name != LOG_FILE]

    def on_trial_start(self, iteration: int, trials: list[TrialView], trial: TrialView, **info: Any) -> None:
        """Make the links of one trial.

        Raises:
            InvalidInputError: there is something else of that name.
        """
        for name in self._names:
            path = os.path.join(trial.path, name)
            if os.path.islink(path):
                continue
            try:
                os.symlink(LOG_FILE, path)
            except FileExistsError:
                raise InvalidInputError(
                    f"RunConfig(log_to_file=...): {path} is another file; choose another name"
                ) from None
