"""Names of files and folders in an experiment's directory. Ray Tune's layout, plus a folder of our own.

Invariant: every name made here is a single path component that any Linux file system takes.
"""

from __future__ import annotations

import re
import time

TRIALPOD_DIR = ".trialpod"
EXPERIMENT_FILE = "experiment.json"
EXPERIMENT_KEY = f"{TRIALPOD_DIR}/{EXPERIMENT_FILE}"
"""Where it is: in a cluster the first object in a place, and the last."""

LOCK_FILE = "lock"
WRITER_KEY = f"{TRIALPOD_DIR}/writer.json"
"""Which process writes an experiment into its storage."""
JOURNAL_DIR = "journal"
TRAINABLE_FILE = "trainable.pkl"
CALLBACKS_FILE = "callbacks.pkl"
"""What a script's callbacks remember for the next start."""

PARAMS_FILE = "params.json"
PICKLED_PARAMS_FILE = "params.pkl"
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.csv"
LOG_FILE = "log.txt"
ERROR_FILE = "error.txt"
PICKLED_ERROR_FILE = "error.pkl"
EVENT_FILE_PREFIX = "events.out.tfevents."
"""TensorBoard reads every file whose name begins so."""

MANIFEST_FILE = ".trialpod-manifest.json"
CLAIM_FILE = ".trialpod-claim"
PACK_PREFIX = ".trialpod-pack-"
BLOCKS_PREFIX = ".trialpod-blocks-"
COPY_PREFIX = ".trialpod-copy-"
"""What a checkpoint has beside the user's files; see `trialpod.storage.checkpoints.remote`."""

STAGING_PREFIX = ".trialpod-staging-"
"""Folders of checkpoints that are being written or removed start so. They are garbage when their writer is gone."""

COMMAND_DIR = ".command"
"""Below the directory of a trial that is a command: the checkpoint folder and the files of parameters."""

MAX_IDENTIFIER = 130
"""Characters of a trial's identity in its directory's name, as in Ray Tune (TUNE_MAX_LEN_IDENTIFIER)."""

_MAX_COMPONENT_BYTES = 255  # NAME_MAX of Linux
_RESERVED = re.compile(r'[/()<>:"\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_CHECKPOINT = re.compile(r"checkpoint_(\d{6,})", re.ASCII)


def trial_dirname(trainable: str, trial_id: str, tag: str, created_at: float) -> str:
    """Return the name of a trial's directory: ``{trainable}_{trial_id}_{experiment_tag}_{time of creation}``.

    Args:
        trainable: name of the Trainable.
        trial_id: the trial's id.
        tag: its experiment tag, e.g. ``2_lr=0.0132``.
        created_at: seconds since the epoch; shown in UTC.
    """
    return named_dirname(f"{trainable}_{trial_id}", tag, created_at)


def named_dirname(name: str, tag: str, created_at: float) -> str:
    """Return the name of the directory of a trial that a script has named: ``{name}_{experiment_tag}_{time}``."""
    identity = _RESERVED.sub("_", f"{name}_{tag}"[:MAX_IDENTIFIER])
    date = time.strftime("_%Y-%m-%d_%H-%M-%S", time.gmtime(created_at))
    # A cut inside a character of several bytes drops that character.
    identity = identity.encode()[: _MAX_COMPONENT_BYTES - len(date)].decode(errors="ignore")
    if identity.startswith("."):
        identity = "_" + identity[1:]
    return identity + date


def is_internal(path: str) -> bool:
    """Return whether this path in a checkpoint is not of the user's files."""
    return path in (MANIFEST_FILE, CLAIM_FILE) or path.startswith((PACK_PREFIX, BLOCKS_PREFIX, COPY_PREFIX))


def checkpoint_name(index: int) -> str:
    """Return the name of the directory of the checkpoint with this index (0, 1, 2, ...)."""
    if index < 0:
        raise ValueError(f"a checkpoint's index is 0 or more, not {index}")
    return f"checkpoint_{index:06d}"


def checkpoint_index(name: str) -> int | None:
    """Return the index in a checkpoint directory's name, None if it is not such a name."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        return None
    index = int(match[1])
    return index if checkpoint_name(index) == name else None
