"""The engine of an experiment as its journal tells it, brought up to date record by record.

The records choose everything: no algorithm of the experiment is needed, and no object of its user's is opened.
"""

from __future__ import annotations

from collections.abc import Callable

from trialpod.storage.journal.follower import Update
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod_operator.engine.actions import Action
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.records import Record, RecordedSearch, decode_record, decode_snapshot
from trialpod_operator.experiment.trial_files import plain_dirname


class RecordedEngine:
    """Replays a journal.

    Args:
        name: the experiment's, until the journal says it.
        total: how many trials there will be, where that is known.

    Attributes:
        engine: its state.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._name = name
        self._total = total
        self._names: dict[str, str] = {}
        self._dirnames: dict[str, str] = {}
        self.engine = Engine(RecordedSearch(total), FIFOScheduler())

    def restart(self, snapshot: bytes | None) -> None:
        """Begin again with a snapshot, or with nothing.

        Raises:
            JournalError: it cannot be read by this version.
            InvalidInputError: the same, of the engine's own part.
        """
        self.engine = Engine(RecordedSearch(self._total), FIFOScheduler())
        self._names, self._dirnames = {}, {}
        if snapshot is not None:
            stored = decode_snapshot(snapshot)
            self.engine.restore(bytes(stored.engine), by_record=True)
            self._names.update(stored.names)
            self._dirnames.update(stored.dirnames)

    def apply(
        self, update: Update, observe: Callable[[Record, list[Action]], None] = lambda _record, _actions: None
    ) -> None:
        """Take in what is new in the journal.

        Args:
            update: that.
            observe: called with each record and what followed from it, after the record's own effect.

        Raises:
            JournalError: a record cannot be read by this version.
        """
        if update.restart:
            self.restart(update.snapshot)
        for data in update.records:
            record = decode_record(data)
            actions = self.engine.apply(record.event, record.now, record.choices or Choices())
            for trial_id, (name, dirname) in record.named.items():
                self._names[trial_id] = name
                self._dirnames[trial_id] = dirname
            observe(record, actions)

    @property
    def settings(self) -> Settings:
        """The experiment's settings; before it has begun, some that only name it."""
        return self.engine.state.settings or Settings(name=self._name, trainable_name="")

    def dirname(self, trial: Trial) -> str:
        """Return the name of a trial's directory."""
        return self._dirnames.get(trial.trial_id) or plain_dirname(self.settings.trainable_name, trial)

    def trial_name(self, trial: Trial) -> str:
        """Return the readable name of a trial."""
        return self._names.get(trial.trial_id) or f"{self.settings.trainable_name}_{trial.trial_id}"
