"""An experiment that survives its process: every event goes through the engine and the journal before it has effects.

Order, for each event: the engine applies it, the journal gets the event with what the engine chose, and
only then are actions carried out and answers given. So whatever has been visible outside is in the journal. A
restarted process restores the latest snapshot and replays the records after it.

One thread owns it and everything in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import StorageError
from trialpod.protocol.messages import Assignment
from trialpod.protocol.values import open_leniently
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR, named_dirname
from trialpod.tune.plugins.state import StateNotKeptError, is_pickled, parts
from trialpod_operator.engine.actions import Action, ResultsApplied, TrialCreated, TrialEnded, TrialRequeued, Warned
from trialpod_operator.engine.choices import Choices, Created
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AnyEvent, AttemptStarted, SuggestionReady
from trialpod_operator.engine.trial import ERROR, Trial
from trialpod_operator.experiment.background_search import BackgroundSearcher, is_slow
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.records import EngineSnapshot, Record, decode_record, decode_snapshot, encode
from trialpod_operator.experiment.trial_files import PolicyFiles, TrialFiles

logger = logging.getLogger(__name__)

SNAPSHOT_MIN_BYTES = 16 * 1024 * 1024
"""The journal grows at least this much between two snapshots, and at least twice the size of the last one.

Replaying as much takes about half a second."""


class JournaledEngine:
    """The engine of one experiment with its journal and the files of its trials.

    Args:
        plan: what to run; on an existing experiment the same one, up to its budget.
        directory: the experiment's directory.
        clock: returns seconds since the epoch.
        perform: carries out the actions that concern processes and people; called after journaling.
        heartbeat_s: how often attempts must call when they have nothing to say.
        deliver: takes an event from another thread, to be applied in its owner's soon, by whatever else goes with
            `apply` there. Search algorithms that may take long then do so beside everything else; None has everything
            wait for them. Not called before the first `apply`.
        fetch: brings files that are not in the directory, by their paths in it, from where they are kept; None
            where all of them are in it.

    Attributes:
        replayed: how many records there were after the latest snapshot.
        snapshot_wanted: a decider is to give its engine's snapshot.
        ended_lately: the trials that ended in these.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        directory: Path,
        clock: Callable[[], float],
        perform: Callable[[Action], None],
        heartbeat_s: float = 10.0,
        deliver: Callable[[SuggestionReady], None] | None = None,
        fetch: Callable[[list[str]], None] | None = None,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self._queued: BackgroundSearcher | None = None
        if deliver is not None and is_slow(plan.search) and not plan.decided:
            self._queued = BackgroundSearcher(
                plan.search, deliver, opens_values=plan.opens_values, encode_params=plan.encode_params
            )
        self.engine = Engine(
            self._queued or plan.search,
            plan.scheduler,
            plan.stopper,
            opens_values=plan.opens_values,
            encode_params=plan.encode_params,
        )
        self.engine.controller.resources_of = plan.resources_for
        self.engine.notice = plan.notice
        self.files = TrialFiles(directory, plan.settings.trainable_name, self._warn, fetch=fetch)
        self._policies = PolicyFiles(directory, plan.scheduler, lambda message: self._warn("", message))
        self._clock = clock
        self._ahead_s = 0.0  # of the experiment's time, since the clock was set back
        self._perform = perform
        self._heartbeat_s = heartbeat_s
        # Where the journal is copied, what a snapshot replaces is the proof that the copy is this journal's.
        copied = plan.remote is not None
        self._journal = Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR, keep_replaced=copied)
        self._snapshot_size = 0
        self._snapshot_due = False
        self._state_kept = True  # False: the engine's state could not be stored when the journal had `_snapshot_size`
        self.snapshot_wanted = False
        self._state_reported = False
        self._failure_reported = False  # of a snapshot that could not be written
        self._written = 0
        self._names: dict[str, str] = {}
        self._dirnames: set[str] = set()  # those that the script has chosen
        self._durable = 0
        self._warnings: list[Action] = []  # about files, to be reported with the next event
        self.ended_lately: list[Trial] = []
        try:
            self.replayed = self._replay()
        except BaseException:
            if self._queued is not None:
                self._queued.close()
            self._journal.close()
            raise
        self._written = self._journal.position
        # What a user's own code draws at random is drawn from where the generators are now, and a study that an
        # OptunaSearch found in a storage has its own trials in it later on.
        every = [part for each in (plan.search, plan.scheduler, plan.stopper) for part in parts(each)]
        outside = any(is_pickled(part) or getattr(part, "state_from_outside", False) for part in every)
        self._snapshot_due = self._written == 0 and outside

    def apply(self, event: AnyEvent, now: float | None = None, choices: Choices | None = None) -> None:
        """Apply an event, journal it, and carry out what follows from it.

        Args:
            event: what happened.
            now: the time that the decider was given, if there is one; else the current time.
            choices: what a decider chose; None has the engine choose.

        Raises:
            StorageError: the journal cannot be written; nothing has been carried out; this object must be dropped.
        """
        now = self.now() if now is None else now
        actions = self.engine.apply(event, now, choices)
        choices = self.engine.choices if choices is None else choices
        named = self._named(choices, now) if self._names_itself else {}
        record = Record(now, event, None if choices.empty else choices, named)
        self._written = self._journal.append(encode(record))
        self._remember(named)
        self._keep_files(event, actions)
        warnings, self._warnings = self._warnings, []
        for action in [*warnings, *actions]:
            self._perform(action)
        grown = self._journal.size_since_snapshot > max(SNAPSHOT_MIN_BYTES, 2 * self._snapshot_size)
        if self._snapshot_due or grown:
            self.write_snapshot()
        if self._queued is not None:
            self._queued.release()

    def now(self) -> float:
        """Return the experiment's time, in seconds since the epoch.

        It never goes back, also not from one process to the next, and it always advances: when the clock was set
        back it resumes from the latest time that the journal knows.
        """
        now, latest = self._clock() + self._ahead_s, self.engine.state.clock.now
        if now < latest:
            self._ahead_s += latest - now
            return latest
        return now

    @property
    def position(self) -> int:
        """Number of the journal's latest record."""
        return self._written

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment for the trial's current attempt."""
        settings = self.plan.settings
        engine = self.engine
        start = trial.active_exploit.start if trial.active_exploit is not None else None
        source = engine.state.trials[start.trial_id] if start is not None else None
        return Assignment(
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            trial_name=self.trial_name(trial),
            experiment=settings.name,
            experiment_tag=trial.tag,
            trial_dir=str(self.files.path(trial)),
            checkpoint_uri=self.checkpoint_uri(trial),
            storage_options=msgspec.to_builtins(self.plan.remote.options) if self.plan.remote is not None else {},
            params=msgspec.Raw(trial.params),
            trainable=self.plan.trainable,
            resources=engine.controller.resources(trial),
            checkpoint=trial.checkpoint,
            source_dir=str(self.files.path(source)) if source is not None else "",
            source_uri=self.checkpoint_uri(source) if source is not None else "",
            checkpoints=trial.checkpoints,
            next_checkpoint_index=trial.next_checkpoint_index,
            checkpoint_rules=settings.checkpoint_rules,
            stop_rules=settings.stop_rules,
            horizons=engine.horizons(trial),
            metric=settings.metric,
            repeat=trial.repeat,
            heartbeat_s=self._heartbeat_s,
            grace_s=self.plan.grace_s,
            reuse=settings.reuse,
            saves_at_horizon=engine.scheduler.saves_at_horizon,
            pinned=[name for holder, name in engine.state.pins if holder == trial.trial_id],
            asks_to_delete=True,
            keeps_types=True,
            created_at=trial.created_at,
        )

    def checkpoint_uri(self, trial: Trial) -> str:
        """Return where the trial's checkpoints are, when that is not its directory on this machine; else ""."""
        remote = self.plan.remote
        return f"{remote.uri}/{self.files.path(trial).name}" if remote is not None else ""

    def trial_name(self, trial: Trial) -> str:
        """Return the readable name of a trial."""
        return self._names.get(trial.trial_id) or f"{self.plan.settings.trainable_name}_{trial.trial_id}"

    def flush(self) -> None:
        """Bring the trial files, and what the scheduler tells of exploits, up to date."""
        for _ in self.flush_in_slices():
            pass

    def flush_in_slices(self) -> Iterator[None]:
        """Do so with a few trials at a time; between two of the slices, events may come."""
        yield from self.files.flush_in_slices()
        self._policies.flush()

    def policy_files(self) -> frozenset[str]:
        """Return the names of the files that tell of exploits. For any thread."""
        return self._policies.names

    def sync(self) -> None:
        """Make everything journaled so far survive a power loss too."""
        if self._durable < self._written:
            self._durable = self._journal.sync()

    def write_snapshot(self) -> None:
        """Store the whole state, so that the next start need not replay what came before.

        While a suggestion is being computed it is put off until that has come. That of an engine which follows a
        decider is the decider's, and comes with `take_snapshot`. One that cannot be stored loses nothing: the journal
        is kept.

        Raises:
            StorageError: the journal takes no more records.
        """
        if self.plan.decided:
            self._snapshot_due, self.snapshot_wanted = False, True
            return
        self._snapshot_due = self._queued is not None and not self._queued.quiesce()
        if self._snapshot_due:
            return
        try:
            offsets = self.files.offsets()
        except StorageError:
            # Set by `files`. Until they are written, only the journal has these results.
            self._snapshot_size = self._journal.size_since_snapshot
            return
        try:
            engine = self.engine.snapshot()
        except StateNotKeptError as error:
            # Nothing is lost: the journal is kept, and a later start calls the object as it was called before.
            self._put_off_snapshot()
            if not self._state_reported:
                self._state_reported = True
                self._warn("", f"{error}; its state is rebuilt from the journal when the experiment is resumed")
            return
        self._store_snapshot(engine, offsets)

    def begin_segment(self) -> None:
        """Continue in a new segment of the journal: the last one takes no more records in the storage.

        Raises:
            StorageError: it could not be made.
        """
        self._journal.begin_segment()

    def take_snapshot(self, engine: bytes) -> None:
        """Store the state of a decider's engine, which knows exactly what is in the journal.

        Raises:
            StorageError: the journal takes no more records.
        """
        try:
            offsets = self.files.offsets()
        except StorageError:
            return  # see `write_snapshot`; it is asked for again
        self._store_snapshot(engine, offsets)
        self.snapshot_wanted = False

    def skip_snapshot(self) -> None:
        """A decider cannot store its engine's state: it is not asked again until the journal has grown."""
        self.snapshot_wanted = False
        self._put_off_snapshot()

    @property
    def snapshot_possible(self) -> bool:
        """Whether `write_snapshot` is worth a call.

        It is not while the decider has yet to answer an earlier one, and where the state could not be stored until
        the journal is twice as large.
        """
        grown = self._journal.size_since_snapshot > 2 * self._snapshot_size
        return not self.snapshot_wanted and (self._state_kept or grown)

    def _put_off_snapshot(self) -> None:
        self._state_kept, self._snapshot_size = False, self._journal.size_since_snapshot

    def _store_snapshot(self, engine: bytes, offsets: dict[str, dict[str, int]]) -> None:
        snapshot = EngineSnapshot(
            engine=msgspec.Raw(engine),
            offsets=offsets,
            names=self._names,
            dirnames=self.files.dirnames,
        )
        data = encode(snapshot)
        try:
            self._journal.write_snapshot(data)
        except StorageError as error:
            if not self._journal.takes_records:
                raise
            self._put_off_snapshot()  # nothing is lost: the journal is as it was
            if not self._failure_reported:
                self._failure_reported = True
                self._warn("", f"{error}; the journal is kept, and a resume takes longer until this works again")
        else:
            self._state_kept, self._snapshot_size = True, len(data)
            self._failure_reported = False

    @property
    def snapshot_position(self) -> int:
        """Number of the last record that the latest snapshot stands for."""
        return self._journal.covered

    def engine_snapshot(self) -> bytes | None:
        """Return the engine's part of the latest snapshot; None when there is none."""
        stored = self._journal.snapshot
        return bytes(decode_snapshot(stored).engine) if stored is not None else None

    def records_after(self, position: int) -> Iterator[Record]:
        """Yield the records after a position, which the latest snapshot must not be beyond."""
        for data in islice(self._journal.records(), position - self._journal.covered, None):
            yield decode_record(data)

    def close(self) -> None:
        """Flush and close everything; this object cannot be used afterwards."""
        if self._queued is not None:
            self._queued.close()
        self.files.close()
        self._policies.flush()
        try:
            self._journal.sync()
        except StorageError as error:  # nothing more can be done for the records, and the rest is to be released
            logger.warning("the last records of the experiment may not survive a power failure: %s", error)
        finally:
            self._journal.close()

    def _replay(self) -> int:
        snapshot = self._journal.snapshot
        if snapshot is not None:
            stored = decode_snapshot(snapshot)
            self._snapshot_size = len(snapshot)
            self.engine.restore(bytes(stored.engine), by_record=self.plan.decided is not None)
            self._names = stored.names
            self.files.dirnames = stored.dirnames
            self._dirnames = set(stored.dirnames.values())
            self.files.resumed = dict(stored.offsets)
            self.files.resume(trial for trial in self.engine.state.trials.values() if not trial.ended)
        count = 0
        for data in self._journal.records():
            record = decode_record(data)
            actions = self.engine.apply(record.event, record.now, record.choices or Choices())
            self._remember(record.named)
            self._keep_files(record.event, actions, replayed=True)
            self.ended_lately += [action.trial for action in actions if isinstance(action, TrialEnded)]
            count += 1
        return count

    @property
    def _names_itself(self) -> bool:
        return self.plan.trial_name is not None or self.plan.trial_dirname is not None

    def _named(self, choices: Choices, now: float) -> dict[str, tuple[str, str]]:
        trials = self.engine.state.trials
        repeats = [Created(each.trial_id, trials[each.trial_id].tag, each.params) for each in choices.repeats]
        return {created.trial_id: self._name(created, now) for created in (*choices.created, *repeats)}

    def _name(self, created: Created, now: float) -> tuple[str, str]:
        """Return what a script calls a new trial and its directory, which is that of no other trial."""
        namer, dirnamer = self.plan.trial_name, self.plan.trial_dirname
        config: dict[str, Any] = open_leniently(created.params)  # a script's own, in its own process
        name = namer(created.trial_id, created.tag, config) if namer is not None else ""
        if dirnamer is not None:
            dirname = dirnamer(created.trial_id, created.tag, config)
        else:
            dirname = named_dirname(name, created.tag, now)
        if dirname in self._dirnames:
            dirname = f"{dirname}_{created.trial_id}"
        self._dirnames.add(dirname)
        return name, dirname

    def _warn(self, trial_id: str, message: str) -> None:
        self._warnings.append(Warned(message, self.engine.state.trials.get(trial_id)))

    def _remember(self, named: dict[str, tuple[str, str]]) -> None:
        for trial_id, (name, dirname) in named.items():
            if name:
                self._names[trial_id] = name
            if dirname:
                self.files.dirnames[trial_id] = dirname
                self._dirnames.add(dirname)

    def _keep_files(self, event: AnyEvent, actions: list[Action], *, replayed: bool = False) -> None:
        if isinstance(event, AttemptStarted):
            trial = self.engine.state.trials.get(event.trial_id)
            if trial is not None and trial.attempt == event.attempt:
                self.files.attempt_started(trial)
        for action in actions:
            match action:
                case ResultsApplied(trial=trial, results=results):
                    self.files.append(trial, results)
                case TrialCreated(trial=trial):
                    self.files.create(trial, replayed=replayed)
                case TrialEnded(trial=trial):
                    if trial.status == ERROR:
                        self.files.failed(trial)
                    self.files.ended(trial)
                case TrialRequeued(trial=trial, why="failed"):
                    self.files.failed(trial)
