"""The values of configs and results with their own types, for a script whose experiment runs in a cluster.

TuneTrials and `result.json` have a readable form of them; the journal in the storage has the values. They are opened
here, in the script's own process.

Invariant: what is returned belongs to the row that was asked about, or is that row. A result that a snapshot of the
journal has replaced before it was read here, and that is not its trial's latest, stays in its readable form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError, JournalError, StorageError
from trialpod.protocol.values import ResultReader, open_leniently
from trialpod.storage.base import Storage
from trialpod.storage.journal.follower import JournalFollower
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod.tune.shipping.stored_objects import read_values_from
from trialpod_operator.engine.actions import Action, ResultsApplied
from trialpod_operator.engine.events import ResultsReceived
from trialpod_operator.experiment.records import Record
from trialpod_operator.view.location import Location
from trialpod_operator.view.recorded_engine import RecordedEngine

logger = logging.getLogger(__name__)

_Key = tuple[str, Any, Any]


class TypedValues:
    """Follows the journal of an experiment in its storage.

    Args:
        open_storage: opens the experiment's storage.
        uri: of that storage.
    """

    def __init__(self, open_storage: Callable[[], Storage], uri: str) -> None:
        self._open_storage = open_storage
        self._uri = uri
        self._recorded = RecordedEngine("", None)
        self._location: Location | None = None
        self._follower: JournalFollower | None = None
        self._reader = ResultReader()
        self._results: dict[_Key, bytes] = {}  # those with more than plain data, until they are asked for
        self._configs: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def refresh(self) -> None:
        """Read what is new; what cannot be read now is read later."""
        try:
            if self._location is None or self._follower is None:
                self._location = Location(self._uri, self._open_storage())
                self._follower = JournalFollower(self._location.directory / TRIALPOD_DIR / JOURNAL_DIR)
                read_values_from(f"{self._uri}/{TRIALPOD_DIR}")
            self._location.refresh()
            update = self._follower.poll()
            self._recorded.apply(update, self._observe)
            if update.restart:
                for trial in self._recorded.engine.state.trials.values():
                    self._keep(trial.trial_id, bytes(trial.result))
        except InvalidInputError:
            return  # it has not begun
        except (StorageError, JournalError) as error:
            logger.debug("callbacks get readable forms of values for now: %s", error)

    def config(self, trial_id: str) -> dict[str, Any] | None:
        """Return the config of a trial, None if the journal does not have it yet."""
        trial = self._recorded.engine.state.trials.get(trial_id)
        if trial is None:
            return None
        raw = bytes(trial.params)
        known = self._configs.get(trial_id)
        if known is None or known[0] != raw:
            known = self._configs[trial_id] = raw, open_leniently(raw)
        return known[1]

    def result(self, trial_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result, given its row of `result.json` by flat names."""
        raw = self._results.pop(_key(trial_id, row), None)
        config = self.config(trial_id)
        return {
            **row,
            **(open_leniently(raw) if raw is not None else {}),
            **({"config": config} if config is not None and "config" in row else {}),
        }

    def close(self) -> None:
        """Remove the copy of the journal."""
        if self._location is not None:
            self._location.close()

    def _observe(self, record: Record, actions: list[Action]) -> None:
        if isinstance(record.event, ResultsReceived) and any(isinstance(each, ResultsApplied) for each in actions):
            for raw in record.event.results:
                self._keep(record.event.trial_id, bytes(raw))

    def _keep(self, trial_id: str, raw: bytes) -> None:
        if not raw:
            return
        self._reader.typed = False
        row = self._reader.decode(raw)
        if self._reader.typed:
            self._results[_key(trial_id, row)] = raw


def _key(trial_id: str, row: Mapping[str, Any]) -> _Key:
    """Return what tells the results of a trial apart, in the journal and in its file."""
    return trial_id, row.get("training_iteration"), row.get("time_total_s")
