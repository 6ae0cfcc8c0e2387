"""Reads a whole experiment, from a folder or a bucket, and checks that nothing of it is lost or damaged.

Nothing is changed, and the experiment may be running: the journal is read before the listing and, unless the
experiment is finished, again after it. What both readings know must be in the listing; files are compared with the
later one. Before a checkpoint is called lost or damaged, the journal is read again: it may have been deleted
while checkpoints were checked.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, JournalError, StorageError, TrialpodError
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.base import KeyMissingError, Storage, StorageUnavailableError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import (
    ERROR_FILE,
    EVENT_FILE_PREFIX,
    JOURNAL_DIR,
    LOG_FILE,
    MANIFEST_FILE,
    PARAMS_FILE,
    PICKLED_ERROR_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    STAGING_PREFIX,
    TRIALPOD_DIR,
    checkpoint_index,
)
from trialpod.storage.parallel import run_all
from trialpod.storage.registry import open_storage
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.background_search import is_slow
from trialpod_operator.experiment.fsck.checkpoints import Present, TrialCheckpoints, check_checkpoints, report_damaged
from trialpod_operator.experiment.fsck.findings import Finding, Findings
from trialpod_operator.experiment.fsck.history import Checked, History, check_records, first_other_choice
from trialpod_operator.experiment.fsck.trial_files import TrialResults, check_progress, check_results
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_manifest
from trialpod_operator.experiment.records import RecordedSearch, decode_record, decode_snapshot
from trialpod_operator.experiment.replica.journal_layout import folder_in, folder_of
from trialpod_operator.experiment.replica.replica import FencedError, Replica
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored
from trialpod_operator.experiment.trial_files import TrialFiles

_THREADS = 8
_TRIES = 4
"""The journal of a running experiment is replaced by snapshots now and then, but not so often."""
_TRIAL_FILES = frozenset({PARAMS_FILE, RESULT_FILE, PROGRESS_FILE, LOG_FILE, ERROR_FILE, PICKLED_ERROR_FILE})
_EXPERIMENT_FILES = ("tuner.pkl", "pbt_global.txt", "pbt_policy_")
_COPY = "put the experiment back from a copy"


@dataclass
class Examination:
    """What came of it.

    Attributes:
        location: where the experiment is.
        name: its name.
        state: "Running", "Succeeded", ...; as of the journal's end. "" when the journal cannot be read.
        replayed: "plan" when the records were replayed by the plan's algorithms, "records" when by none.
    """

    location: str
    name: str = ""
    state: str = ""
    records: int = 0
    trials: int = 0
    results: int = 0
    checkpoints: int = 0
    verified: bool = False
    replayed: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """True when there is no error."""
        return not any(finding.severity == "error" for finding in self.findings)


def recording_engine(total: int | None = None) -> Engine:
    """Return an engine that chooses nothing by itself."""
    return Engine(RecordedSearch(total))


def examine(storage: Storage, *, verify: bool = False) -> Examination:
    """Check the experiment at the root of `storage`.

    Args:
        storage: the experiment's location.
        verify: read every checkpoint and compare checksums; else go by manifests and sizes.

    Raises:
        InvalidInputError: there is no experiment.
        StorageError: the storage cannot be read.
    """
    return _Examiner(storage, verify).run()


@dataclass
class _Reading:
    """One reading of the journal, with what belongs to it."""

    stored: dict[str, Any]
    history: History
    names: dict[str, str]  # directories of trials that a script names itself


def _has_decider(reading: _Reading) -> bool:
    """Whether a user's own code decides, which is not here: the algorithms of the manifest have not seen anything."""
    return bool(reading.stored["manifest"]["spec"].get("decider"))


class _Examiner:
    def __init__(self, storage: Storage, verify: bool) -> None:
        self.storage = storage
        self.verify = verify
        self.findings = Findings()
        self.found = Examination(storage.uri, verified=verify)

    def run(self) -> Examination:
        try:
            self._run()
        except (JournalError, FencedError) as error:
            self.findings.error("journal", str(error), remedy="" if isinstance(error, JournalError) else _COPY)
        self.found.findings = self.findings.all
        return self.found

    def _run(self) -> None:
        reading = self._read()
        plan = self._plan(reading)
        checked = check_records(reading.history, self._engine(plan, reading))
        for _ in range(_TRIES):
            earlier, before = reading, checked
            files = self._trial_files(reading, checked)
            sizes = self.storage.sizes()
            present = {name: self._trial_data(name, sizes) for name in files.values()}
            if checked.engine.finished:
                break
            reading = self._read()
            checked = check_records(reading.history, self._engine(self._plan(reading), reading))
            files = self._trial_files(reading, checked)
            if not checked.engine.finished and reading.history.first == earlier.history.first:
                break  # else files that were read before the end, or before a snapshot, cannot be compared with it
        self.findings.all += checked.findings.all
        if not checked.restored:
            return
        state = checked.engine.state
        self.found.name = reading.stored.get("name", "")
        self.found.state = state.flags.state
        self.found.records = reading.history.first - 1 + len(reading.history.records)
        self.found.trials = len(state.trials)
        self.found.results = state.flags.results
        self.found.replayed = "plan" if plan is not None else "records"
        self._check_choices(reading)
        self._check_files(reading, checked, files, present)
        self._check_checkpoints(reading, before, checked, files, sizes)
        self._check_unknown(sizes, set(files.values()), reading.stored.get(JOURNAL_ID, ""))

    # -- the journal --

    def _read(self) -> _Reading:
        local = self.storage.local_path("")
        if local is not None:
            return self._read_folder(local)
        for _ in range(_TRIES):
            with contextlib.suppress(KeyMissingError):  # a snapshot has replaced what was listed
                return self._read_copy()
        return self._read_copy()

    def _read_copy(self) -> _Reading:
        with tempfile.TemporaryDirectory(prefix="trialpod-") as copy:
            try:
                Replica(Path(copy), self.storage).pull(journal_only=True)
            except InvalidInputError as error:  # of the document, which names the journal
                raise JournalError(str(error)) from error
            return self._read_folder(Path(copy))

    def _read_folder(self, folder: Path) -> _Reading:
        location = folder / TRIALPOD_DIR / JOURNAL_DIR
        stored: dict[str, Any] | None = {}
        try:
            stored = read_stored(folder)
        except InvalidInputError as error:
            self._once("experiment", str(error))
        has_journal = location.is_dir() and any(location.iterdir())
        if stored is None and not has_journal:
            raise InvalidInputError(
                f"there is no experiment at {self.storage.uri}; give the directory that `trialpod run` printed, or "
                "s3://bucket/prefix/name"
            )
        if stored is None:
            self._once("experiment", f"{TRIALPOD_DIR}/experiment.json is missing")
        journal = Journal.open(location, read_only=True)
        try:
            records = [decode_record(data) for data in journal.records()]
            snapshot = decode_snapshot(journal.snapshot) if journal.snapshot is not None else None
            first = journal.position - len(records) + 1
        finally:
            journal.close()
        names = dict(snapshot.dirnames) if snapshot is not None else {}
        for record in records:
            names |= {trial_id: dirname for trial_id, (_, dirname) in record.named.items() if dirname}
        return _Reading(stored or {}, History(records, snapshot, first), names)

    def _once(self, check: str, what: str) -> None:
        if all(finding.what != what for finding in self.findings.all):
            self.findings.error(check, what, remedy=_COPY)

    # -- the engine --

    def _plan(self, reading: _Reading) -> ExperimentPlan | None:
        """Return a fresh plan as the experiment has it, None when only its script could make one."""
        if "manifest" not in reading.stored:
            return None
        try:
            experiment = msgspec.convert(reading.stored["manifest"], TuneExperiment)
            return plan_from_manifest(experiment, Path("/"), reading.stored, trainable=TrainableRef())
        except (TrialpodError, msgspec.ValidationError, ImportError) as error:
            text = f"the records were replayed without the plan's algorithms, which cannot be made here: {error}"
            if all(finding.what != text for finding in self.findings.all):
                self.findings.note("replay", text)
            return None

    def _engine(self, plan: ExperimentPlan | None, reading: _Reading) -> Engine:
        if plan is None:
            return recording_engine(reading.stored.get("total"))
        if _has_decider(reading):
            engine = recording_engine(reading.stored.get("total"))
        else:
            # What a search algorithm that takes its time has suggested is in the records; it need not be made again.
            search = RecordedSearch(plan.search.total) if is_slow(plan.search) else plan.search
            engine = Engine(search, plan.scheduler, plan.stopper)
        engine.controller.resources_of = plan.resources_for
        return engine

    def _check_choices(self, reading: _Reading) -> None:
        """See whether the plan's algorithms would choose the same again."""
        plan = self._plan(reading)
        events = (record.event for record in reading.history.records)
        if (
            plan is None
            or _has_decider(reading)
            or is_slow(plan.search)
            or any(isinstance(event, SuggestionReady) for event in events)
        ):
            return
        try:
            number = first_other_choice(reading.history, self._engine(plan, reading))
        except Exception as error:  # noqa: BLE001 - of algorithms of another version; what they chose then stands
            self.findings.note("replay", f"the plan's algorithms cannot repeat their choices: {error}")
            return
        if number is not None:
            self.findings.note(
                "replay",
                f"from record {number} on, the plan's algorithms choose otherwise than they did; what was chosen "
                "then stands. It was another version of trialpod, or records before are not what they were",
            )

    # -- the files of trials --

    def _trial_files(self, reading: _Reading, checked: Checked) -> dict[str, str]:
        """Return the names of the trials' directories."""
        settings = checked.engine.state.settings
        paths = TrialFiles(Path(), settings.trainable_name if settings else "")
        paths.dirnames = reading.names
        return {trial.trial_id: paths.path(trial).name for trial in checked.engine.state.trials.values()}

    def _trial_data(self, dirname: str, sizes: Mapping[str, int]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in (RESULT_FILE, PROGRESS_FILE):
            if f"{dirname}/{name}" in sizes:
                data = _read(self.storage, f"{dirname}/{name}")
                if data is not None:
                    found[name] = data
        return found

    def _check_files(
        self, reading: _Reading, checked: Checked, files: dict[str, str], present: dict[str, dict[str, bytes]]
    ) -> None:
        snapshot = reading.history.snapshot
        offsets = snapshot.offsets if snapshot is not None else {}
        finished = checked.engine.finished
        for trial in checked.engine.state.trials.values():
            facts, data = checked.facts[trial.trial_id], present.get(files[trial.trial_id])
            if data is None:
                continue  # created since the files were read
            offset = offsets.get(trial.trial_id, {}).get(RESULT_FILE)
            about = TrialResults(
                trial.trial_id,
                facts.results,
                facts.before,
                offset if snapshot is not None else 0,
                final=finished and trial.ended,
                ended=trial.ended,
                copied=self.storage.local_path("") is None,
                last=trial.result,
            )
            lines = check_results(about, data.get(RESULT_FILE), self.findings)
            check_progress(about, data.get(PROGRESS_FILE), lines, self.findings)

    # -- checkpoints --

    def _check_checkpoints(
        self, reading: _Reading, before: Checked, checked: Checked, files: dict[str, str], sizes: Mapping[str, int]
    ) -> None:
        storage = self._checkpoint_storage(reading)
        if storage is None:
            return
        if storage is not self.storage:
            try:
                sizes = storage.sizes()
            except StorageError as error:
                self.findings.warning("checkpoint", f"checkpoints were not checked: {error}")
                return
        below: dict[str, dict[str, int]] = {}
        for key, size in sizes.items():
            dirname, _, rest = key.partition("/")
            below.setdefault(dirname, {})[rest] = size
        texts = _manifests(storage, sizes)
        earlier = before.engine.state.trials
        damaged: list[tuple[TrialCheckpoints, dict[str, str]]] = []
        for trial in checked.engine.state.trials.values():
            dirname = files[trial.trial_id]
            then = earlier.get(trial.trial_id)
            names = {info.name for info in then.checkpoints} if then is not None else set()
            about = TrialCheckpoints(
                trial.trial_id,
                known={info.name: info for info in trial.checkpoints if info.name in names},
                ever=set(checked.facts[trial.trial_id].committed) | {info.name for info in trial.checkpoints},
                next_index=trial.next_checkpoint_index,
                running=trial.running,
                attempt=trial.attempt,
            )
            location = Present(below.get(dirname, {}), texts.get(dirname, {}), storage.local_path("") is None)
            store = open_checkpoints(storage.sub(dirname)) if self.verify and about.known else None
            try:
                verify = store.verify if store is not None else None
                problems = check_checkpoints(about, location, verify, self.findings)
            finally:
                if store is not None:
                    store.close()
            self.found.checkpoints += len(about.known) - len(problems)
            if problems:
                damaged.append((about, problems))
            self._check_start(trial, checked, files, below)
        if damaged:
            trials = checked.engine.state.trials if before.engine.finished else self._trials_now()
            for about, problems in damaged:
                now = trials.get(about.trial_id)
                names = set(about.known) if now is None else {info.name for info in now.checkpoints}
                report_damaged(about, {name: each for name, each in problems.items() if name in names}, self.findings)

    def _trials_now(self) -> Mapping[str, Trial]:
        """Return the trials of the journal as it is now."""
        reading = self._read()
        return check_records(reading.history, recording_engine(reading.stored.get("total"))).engine.state.trials

    def _check_start(
        self, trial: Trial, checked: Checked, files: dict[str, str], below: dict[str, dict[str, int]]
    ) -> None:
        """See that the other trial's checkpoint that this one resumes from is there."""
        starts = [
            way.start
            for way in (trial.pending_exploit, trial.active_exploit)
            if way is not None and way.start is not None
        ]
        for start in starts:
            name = start.checkpoint.name
            there = f"{name}/{MANIFEST_FILE}" in below.get(files.get(start.trial_id, ""), {})
            if not there and not trial.ended and start.trial_id in checked.engine.state.trials:
                self.findings.warning(
                    "checkpoint",
                    f"it is to resume from {name} of trial {start.trial_id}, which is not there",
                    trial.trial_id,
                    "it continues as it was before instead",
                )

    def _checkpoint_storage(self, reading: _Reading) -> Storage | None:
        """Return where the checkpoints are."""
        uri: str = reading.stored.get("storage", "")
        if not uri or self.storage.local_path("") is None:
            return self.storage
        try:
            return open_storage(uri)
        except TrialpodError as error:
            self.findings.warning("checkpoint", f"checkpoints were not checked: {error}")
            return None

    # -- the rest --

    def _check_unknown(self, sizes: Mapping[str, int], dirnames: set[str], journal: str) -> None:
        unknown = Counter(each for key in sizes if (each := folder_in(key)) not in ("", folder_of(journal)))
        own: Counter[str] = Counter()
        for key in sizes:
            top, separator, rest = key.partition("/")
            name = rest.partition("/")[0]
            if top == TRIALPOD_DIR or (not separator and top.startswith(_EXPERIMENT_FILES)):
                continue
            if top not in dirnames:
                unknown[top] += 1
            elif not (name in _TRIAL_FILES or name.startswith((EVENT_FILE_PREFIX, STAGING_PREFIX))):
                own[top] += checkpoint_index(name) is None
        shown = [f"{name} ({count:,})" if count > 1 else name for name, count in list(unknown.items())[:5]]
        if unknown:
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            self.findings.note("unknown", f"not of this experiment: {', '.join(shown)}{more}")
        if count := sum(own.values()):
            self.findings.note(
                "unknown", f"{count:,} files in trials' directories are not trialpod's, but the user's"
            )


def _read(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except KeyMissingError:
        return None  # removed since it was listed


def _manifests(storage: Storage, sizes: Mapping[str, int]) -> dict[str, dict[str, bytes | StorageError]]:
    """Return the text of all manifests, or why one cannot be read, by the trial's directory and the checkpoint."""
    found: dict[str, dict[str, bytes | StorageError]] = {}

    def read(dirname: str, name: str, key: str) -> None:
        data: bytes | StorageError | None
        try:
            data = _read(storage, key)
        except StorageUnavailableError:
            raise
        except StorageError as error:
            data = error
        if data is not None:
            found.setdefault(dirname, {})[name] = data

    jobs: list[Callable[[], None]] = []
    for key in sizes:
        parts = key.split("/")
        if len(parts) == 3 and parts[2] == MANIFEST_FILE and checkpoint_index(parts[1]) is not None:
            jobs.append(partial(read, parts[0], parts[1], key))
    run_all(jobs, _THREADS)
    return found
