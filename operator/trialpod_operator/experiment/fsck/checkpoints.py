"""Checks the checkpoints of a trial: those that the journal knows are there and whole, others are explained.

A checkpoint that one reading of the journal before the listing and another one after all checks know existed all the
time between: it is forgotten before it may be deleted. Manifests are read, and files only to verify checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints.manifest import Manifest, Tombstone
from trialpod.storage.layout import CLAIM_FILE, STAGING_PREFIX, checkpoint_index
from trialpod_operator.experiment.fsck.findings import Findings

_ELSE = "restore it from a copy; else the trial resumes from an older one, or from the start"


@dataclass
class TrialCheckpoints:
    """What the history says of a trial's checkpoints.

    Attributes:
        known: committed and not deleted, in both readings of the journal.
        ever: names of all that the journal ever named, as far as it goes back.
        next_index: the index of the next one.
        running: an attempt is not over, so something may be in progress.
        attempt: number of the latest attempt.
    """

    trial_id: str
    known: dict[str, CheckpointInfo]
    ever: set[str]
    next_index: int
    running: bool
    attempt: int


@dataclass
class Present:
    """What is there below a trial's place.

    Attributes:
        sizes: of all files and objects, keys relative to the trial's place.
        manifests: the text of each ``.trialpod-manifest.json``, or why it cannot be read, by the checkpoint's name.
        remote: it is a bucket, where checkpoints may share objects.
    """

    sizes: Mapping[str, int]
    manifests: Mapping[str, bytes | StorageError]
    remote: bool
    folders: dict[str, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.folders = {}
        for key, size in self.sizes.items():
            name, separator, _ = key.partition("/")
            if separator and (checkpoint_index(name) is not None or name.startswith(STAGING_PREFIX)):
                self.folders.setdefault(name, {})[key] = size


def check_checkpoints(
    trial: TrialCheckpoints,
    present: Present,
    verify: Callable[[CheckpointInfo], None] | None,
    findings: Findings,
) -> dict[str, str]:
    """Check the checkpoints of one trial; return what is wrong with those that the journal knows, by their names.

    Args:
        trial: what must be there.
        present: what is there.
        verify: reads a checkpoint and raises CheckpointError or StorageError when it is damaged or cannot be read;
            None to go by sizes.
        findings: takes what is found about others.
    """
    read = {name: _manifest(name, data) for name, data in present.manifests.items()}
    problems: dict[str, str] = {}
    for name, info in trial.known.items():
        problem = _problem(info, read.get(name), present)
        if problem is None and verify is not None:
            try:
                verify(info)
            except StorageUnavailableError:
                raise
            except (CheckpointError, StorageError) as error:
                problem = str(error)
        if problem is not None:
            problems[name] = problem
    needed = {key for found in read.values() if isinstance(found, Manifest) for key in found.object_keys()}
    for name in sorted(present.folders):
        if name not in trial.known:
            _explain(name, read.get(name), trial, present, needed, findings)
    return problems


def report_damaged(trial: TrialCheckpoints, problems: Mapping[str, str], findings: Findings) -> None:
    """Report the problems of checkpoints that the journal still knows."""
    for name, problem in problems.items():
        iteration = trial.known[name].iteration
        findings.error("checkpoint", f"{name} (iteration {iteration}) {problem}", trial.trial_id, _ELSE)


def _problem(info: CheckpointInfo, found: Manifest | Tombstone | str | None, present: Present) -> str | None:
    """Return what is wrong with a checkpoint that must be there, None when it is valid as far as sizes tell."""
    if found is None:
        return "has no manifest" if info.name in present.folders else "is missing"
    if isinstance(found, Tombstone):
        return "was given up by a later attempt"
    if isinstance(found, str):
        return found
    has, wants = found.checkpoint, info
    if (has.name, has.index, has.attempt, has.iteration) != (wants.name, wants.index, wants.attempt, wants.iteration):
        return f"is another one, of attempt {has.attempt} at iteration {has.iteration}"
    for entry in found.files:
        ranges = entry.ranges(info.name)
        missing = [piece.key for piece in ranges if piece.key not in present.sizes]
        if missing:
            what = f"{missing[0]}, which {entry.path} is in," if entry.pieces else missing[0]
            return f"is damaged: {what} is missing"
        if entry.pieces:
            continue
        (piece,) = ranges
        size, end = present.sizes[piece.key], piece.offset + piece.size
        if size < end or (not entry.key and size != end):
            return f"is damaged: {piece.key} has {size:,} bytes instead of {end:,}"
    return None


def _explain(
    name: str,
    found: Manifest | Tombstone | str | None,
    trial: TrialCheckpoints,
    present: Present,
    needed: set[str],
    findings: Findings,
) -> None:
    """Say what a folder is that the journal does not count among the trial's checkpoints."""
    index = checkpoint_index(name)
    sweep = "the trial's next attempt removes it, if there is one"
    if index is None:
        what = f"{name} was being written or removed"
        findings.note("garbage", what if trial.running else f"{what} when its process died", trial.trial_id, sweep)
    elif isinstance(found, Manifest):
        _explain_committed(name, found, trial, findings)
    elif isinstance(found, Tombstone):
        findings.note("garbage", f"{name} was given up by its attempt, and is marked as such", trial.trial_id)
    elif found is not None:
        findings.warning("garbage", f"{name}, which the journal does not know, {found}", trial.trial_id, sweep)
    else:
        left = present.folders[name].keys() - needed
        only_claim = left <= {f"{name}/{CLAIM_FILE}"}
        if not left or (only_claim and trial.running):
            return  # later checkpoints refer to what is there; or the index is reserved
        if trial.running and index >= trial.next_index:
            findings.note("checkpoint", f"{name} is being written", trial.trial_id)
        elif only_claim:
            findings.note("garbage", f"{name} was reserved and never written", trial.trial_id)
        else:
            findings.note(
                "garbage", f"{name} has no manifest: it was not completed, or is removed", trial.trial_id, sweep
            )


def _explain_committed(name: str, found: Manifest, trial: TrialCheckpoints, findings: Findings) -> None:
    info = found.checkpoint
    if name in trial.ever:
        findings.note("garbage", f"{name} is no longer needed and not removed yet", trial.trial_id)
    elif info.index >= trial.next_index or info.attempt > trial.attempt:
        findings.note("checkpoint", f"{name} is newer than the journal", trial.trial_id)
    else:
        findings.note(
            "garbage",
            f"{name} was committed by attempt {info.attempt}, which ended before it could tell, or is older than "
            "the journal's snapshot",
            trial.trial_id,
        )


def _manifest(name: str, data: bytes | StorageError) -> Manifest | Tombstone | str:
    """Return the manifest, the tombstone in its place, or what is wrong with it."""
    if isinstance(data, StorageError):
        return f"is damaged: {data}"
    try:
        found = manifests.decode(data, "its manifest")
    except CheckpointError as error:
        return f"is damaged: {error}"
    if isinstance(found, Manifest) and found.checkpoint.name != name:
        return f"is damaged: it has the manifest of {found.checkpoint.name}"
    return found
