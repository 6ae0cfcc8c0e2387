"""The rule for an experiment whose directory holds results already: it continues, or is moved aside, or is refused.

* What is unchanged continues, with another budget, other stop rules or other code of the Trainable too.
* What was changed otherwise is refused, with each difference and both ways out.
* Results that no later run can use do not keep the name: where no trial reported anything the new experiment takes
  their place; results without the metric, of an experiment that failed for that reason, are moved aside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.storage.aside import move_aside, move_aside_in_storage, move_journal_aside
from trialpod.storage.base import Storage
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod_operator.display.summary import Remedies
from trialpod_operator.engine.lifecycle import FAILED
from trialpod_operator.experiment.definition import Difference, differences, report
from trialpod_operator.experiment.stored import read_stored, write_stored
from trialpod_operator.experiment.writer import WriterClaim
from trialpod_operator.view.reading import reading

RESUME, FRESH, ADD, ERROR = "resume", "fresh", "add", "error"


class ExperimentChangedError(InvalidInputError):
    """The experiment to run is not the existing one.

    Attributes:
        differences: what was changed.
    """

    def __init__(self, message: str, found: list[Difference]) -> None:
        super().__init__(message)
        self.differences = found


def notify(message: str) -> None:
    """Print a message for the user beside the display."""
    print(message, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Existing:
    """An existing experiment.

    Attributes:
        directory: where it is.
        stored: its ``experiment.json``.
        ways: what its user can do.
        storage: the bucket that it is kept in; None where the directory is all.
        tell: takes one sentence about what was done.
    """

    directory: Path
    stored: Mapping[str, Any]
    ways: Remedies
    storage: Storage | None = None
    tell: Callable[[str], None] = notify

    def resolve(self, document: Mapping[str, Any], if_exists: str = RESUME) -> bool:
        """Return True to continue with it; False when a new experiment has its name now.

        Args:
            document: of what is to run, which has been checked.
            if_exists: "resume", "fresh", "add" or "error".

        Raises:
            ExperimentChangedError: it is another experiment.
            InvalidInputError: it cannot be moved aside.
            ExperimentLockedError: it is running.
        """
        if if_exists == ERROR:
            raise InvalidInputError(
                f"{self.directory} holds an experiment already; choose {self.ways.new_name}, or {self.ways.fresh} to "
                "move it aside"
            )
        if if_exists in (FRESH, ADD):
            self._move(aside=if_exists == FRESH)
            return False
        found = differences(self.stored, document)
        if not found:
            return True
        if self.storage is None:
            if self._has_no_result():
                self._move(aside=False)
                return False
            if self._failed_without_metric():
                self._move(aside=True)
                return False
        self.refuse(found)
        return True

    def refuse(self, found: list[Difference]) -> None:
        """Raise an error that names the differences and both ways out."""
        over = f"  start over:  {self.ways.fresh}   (moves these results to {self.directory.name}.1 or the like)\n"
        place = self.directory if self.storage is None else self.storage.uri
        raise ExperimentChangedError(
            f"{place} holds results of another experiment of this name:\n{report(found)}\n"
            f"The budget ({self.ways.budget}), stop, checkpoint rules and the Trainable's code may change; this may "
            f"not. Choose one:\n  keep both:   {self.ways.new_name}\n{over}".rstrip(),
            found,
        )

    def _move(self, *, aside: bool) -> None:
        if self.storage is not None:
            self._move_in_storage(self.storage)
        elif aside:
            self.tell(f"the results that were in {self.directory} are in {move_aside(self.directory)} now")
        else:
            move_journal_aside(self.directory)

    def _move_in_storage(self, storage: Storage) -> None:
        """Move what is in the bucket, and the working copy of it on this machine, which belongs to it."""
        claim = WriterClaim(storage)
        claim.acquire(self.tell)
        self.tell(f"moving the results in {storage.uri} aside; the server copies them")
        claim.keep()
        try:
            uri = move_aside_in_storage(storage)
        finally:
            claim.release()
        if (self.directory / TRIALPOD_DIR).is_dir():
            working_copy = move_aside(self.directory)
            if (stored := read_stored(working_copy)) is not None:
                write_stored(working_copy, {**stored, "storage": uri})
        self.tell(f"the results that were in {storage.uri} are in {uri} now")

    def _has_no_result(self) -> bool:
        try:
            with reading(self.directory) as experiment:
                state = experiment.engine.state
                return not state.flags.results and not any(trial.checkpoints for trial in state.trials.values())
        except TrialpodError:
            return False  # it says what is wrong when it is opened

    def _failed_without_metric(self) -> bool:
        try:
            with reading(self.directory) as experiment:
                flags, settings = experiment.engine.state.flags, experiment.engine.state.settings
        except TrialpodError:
            return False
        return bool(settings and settings.metric and flags.state == FAILED and not flags.measured)
