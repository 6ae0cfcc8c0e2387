"""Tells a script's callbacks, in the script's process, what happens to an experiment in a cluster.

The cluster does not wait for them: they learn of things when this process sees them. Trials come from the resources,
results from `result.json` in the storage, where the operator copies them while a trial runs (after 15 s to 5 minutes,
depending on how many trials run) and at its end. So each result is delivered once, in order, before the end of its
trial. Values have the types that they were given or reported with (`typed_values`).

Invariants: a trial's results come after its start and before its end. What the storage cannot give now is delivered
later, and all of it before `on_experiment_end`. A process that follows an experiment again delivers everything again.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from trialpod.errors import StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.nested import flatten_row
from trialpod.protocol.values import real_number
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import RESULT_FILE
from trialpod.tune.callback import Callback
from trialpod.tune.callback_list import CallbackList
from trialpod.tune.result import Metrics, checkpoints_in
from trialpod.tune.trial import Trial as TrialView
from trialpod_operator.display.view import ENDED, TrialRow
from trialpod_operator.kube_client.typed_values import TypedValues
from trialpod_operator.kube_client.view import row_of, seconds

if TYPE_CHECKING:
    from trialpod.tune.outcomes import TrialOutcome

logger = logging.getLogger(__name__)

Json = dict[str, Any]

RESULTS_INTERVAL_S = 5.0
"""How often the results of a running trial are looked for."""

CHUNK = 8 * 1024 * 1024
BATCH = 64
"""Trials whose results are read before the journal is, which is read once for all of them."""


class _Delivered:
    """What the callbacks know of one trial."""

    def __init__(self, trial: Json) -> None:
        self.facts = _Facts(trial)
        self.view = TrialView(cast("TrialOutcome", self.facts))
        self.attempts = 0
        self.setbacks = 0
        self.checkpoint = -1
        self.offset = 0
        self.iteration = 0
        self.read_at = float("-inf")
        self.ended = False


class RemoteCallbacks:
    """The callbacks of a script whose experiment runs in a cluster.

    Args:
        callbacks: in the order in which they are called.
        open_storage: opens the experiment's storage.
        uri: of that storage.
        stop: for `Callback.setup`.
        num_samples: for `Callback.setup`.
        time_budget_s: seconds, for `Callback.setup`.
        clock: seconds, for how often the storage is asked.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        open_storage: Callable[[], Storage],
        uri: str,
        *,
        stop: Any = None,
        num_samples: int | None = None,
        time_budget_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hooks = CallbackList(callbacks)
        self._wanted = bool(callbacks)
        self._open_storage = open_storage
        self._uri = uri.rstrip("/")
        self._limits = {
            "stop": {} if stop is None else stop,
            "num_samples": num_samples,
            "time_budget_s": time_budget_s,
        }
        self._clock = clock
        self._storage: Storage | None = None
        self._values = TypedValues(open_storage, self._uri)
        self._iteration = 0
        self._delivered: dict[str, _Delivered] = {}
        self._trials: list[TrialView] = []
        self._begun = self._ended = False

    def refresh(self, item: Mapping[str, Any], trials: list[Json], *, final: bool = False) -> None:
        """Tell what is new.

        Args:
            item: the TuneExperiment.
            trials: its TuneTrials, in their order.
            final: the experiment is over, and all its files are in the storage.

        Raises:
            CallbackError: a callback raised an exception; the experiment continues.
        """
        if not self._wanted:
            return
        if not self._begun:
            self._begun = True
            total = ((item.get("status") or {}).get("trials") or {}).get("total")
            self._hooks.setup(**self._limits, total_num_samples=total)
        self._iteration += 1
        self._call("on_step_begin")
        for trial in trials:
            name = str(trial["metadata"]["name"])
            if name not in self._delivered:
                self._delivered[name] = _Delivered(trial)
                self._trials.append(self._delivered[name].view)
        for start in range(0, len(trials), BATCH):
            self._refresh_trials(trials[start : start + BATCH], final=final)
        self._call("on_step_end")

    def end(self) -> None:
        """Call `on_experiment_end`, once.

        Raises:
            CallbackError: a callback raised an exception; all were called.
        """
        if self._begun and not self._ended:
            self._ended = True
            self._values.close()
            self._hooks.end(trials=self._trials)

    def _refresh_trials(self, trials: list[Json], *, final: bool) -> None:
        looked = []
        for trial in trials:
            delivered = self._delivered[str(trial["metadata"]["name"])]
            if not delivered.ended:
                row = row_of(trial, self._clock())
                looked.append((delivered, trial, row, self._new_results(delivered, trial, row, final=final)))
        # Read after the rows: whatever they show is in the journal already.
        if any(rows or row.attempts > delivered.attempts for delivered, _, row, rows in looked):
            self._values.refresh()
        for delivered, trial, row, rows in looked:
            self._deliver(delivered, trial, row, rows, final=final)

    def _deliver(self, delivered: _Delivered, trial: Json, row: TrialRow, rows: list[Json], *, final: bool) -> None:
        delivered.facts.take(trial)
        if (config := self._values.config(delivered.facts.trial_id)) is not None:
            delivered.facts.config = config
        if row.attempts > delivered.attempts:
            delivered.attempts = row.attempts
            self._call("on_trial_start", delivered)
            if row.checkpoint is not None:
                self._call("on_trial_restore", delivered)
        for each in rows:
            self._result(delivered, each)
        self._checkpoint(delivered)
        setbacks = row.failures + row.disruptions
        over = row.status in ENDED
        if setbacks > delivered.setbacks and not over:
            self._call("on_trial_recover", delivered)
        delivered.setbacks = setbacks
        if over and (final or delivered.iteration >= _reached(trial)):
            delivered.ended = True
            self._call("on_trial_error" if row.status == "ERROR" else "on_trial_complete", delivered)

    def _new_results(self, delivered: _Delivered, trial: Json, row: TrialRow, *, final: bool) -> list[Json]:
        """Return the results of a trial that were not delivered, if it is time to look for them."""
        behind = _reached(trial) > delivered.iteration
        due = self._clock() - delivered.read_at >= RESULTS_INTERVAL_S
        if not (final or (behind and (due or row.status in ENDED))):
            return []
        delivered.read_at = self._clock()
        found: list[Json] = []
        if not row.path:
            return found
        key = f"{row.path.removeprefix(self._uri).strip('/')}/{RESULT_FILE}"
        try:
            if self._storage is None:
                self._storage = self._open_storage()
            while data := self._storage.read_range(key, delivered.offset, CHUNK):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    break  # the last line is being written
                delivered.offset += len(whole)
                found += [flatten_row(json.loads(line)) for line in whole.splitlines()]
        except KeyMissingError:
            pass  # it is copied when there is something in it
        except StorageError as error:
            logger.warning("results for the callbacks come later: %s", error)
        return found

    def _result(self, delivered: _Delivered, row: Json) -> None:
        result = self._values.result(delivered.facts.trial_id, row)
        delivered.facts.last_result = result
        iteration = real_number(result.get("training_iteration"))
        if iteration is not None and math.isfinite(iteration):
            delivered.iteration = max(delivered.iteration, int(iteration))
        if self._hooks.wants("on_trial_result"):
            self._hooks.result(Metrics(result), iteration=self._iteration, trials=self._trials, trial=delivered.view)

    def _checkpoint(self, delivered: _Delivered) -> None:
        info = next(iter(delivered.facts.checkpoints), None)
        if info is None or info.index <= delivered.checkpoint:
            return
        delivered.checkpoint = info.index
        if self._hooks.wants("on_checkpoint"):
            checkpoint = checkpoints_in(delivered.view.checkpoint_place, [info])[0][0]
            self._call("on_checkpoint", delivered, checkpoint=checkpoint)
        self._call("on_trial_save", delivered)

    def _call(self, hook: str, delivered: _Delivered | None = None, **more: Any) -> None:
        if delivered is not None:
            more["trial"] = delivered.view
        if self._hooks.wants(hook):
            self._hooks.call(hook, iteration=self._iteration, trials=self._trials, **more)


def _reached(trial: Json) -> int:
    return int((trial.get("status") or {}).get("iteration") or 0)


class _Facts:
    """A TuneTrial with the attributes of a `TrialOutcome`."""

    def __init__(self, trial: Json) -> None:
        self.last_result: Json | None = None
        self.trainable_name = ""
        self.experiment_tag = ""
        self.traceback = ""
        self.checkpoint_uri = ""
        self.take(trial)

    def take(self, trial: Json) -> None:
        """Follow the resource."""
        row = row_of(trial, 0.0)
        self.trial_id, self.name, self.status = row.trial_id, row.name, row.status
        self.config, self.path = row.config, row.path
        self.error, self.failures = row.error, row.failures
        self.created_at = seconds((trial.get("metadata") or {}).get("creationTimestamp"))
        found = (trial.get("status") or {}).get("checkpoint") or {}
        name = str(found.get("name") or "")
        number = name.rpartition("_")[2]
        self.checkpoints = (
            [
                CheckpointInfo(
                    name=name,
                    index=int(number),
                    iteration=int(found.get("iteration") or 0),
                    metrics={},
                    attempt=int((trial.get("status") or {}).get("attempt") or 0),
                )
            ]
            if number.isdecimal()
            else []
        )
