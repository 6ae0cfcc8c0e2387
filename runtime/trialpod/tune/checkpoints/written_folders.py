"""The folders that `tune.checkpoint_dir` gives: a script may read a checkpoint again where it has written it.

A folder's path ends as in Ray Tune, ``{trial's directory}/checkpoint_{step}``, but lies in a temporary folder: the
trial's own directory has the checkpoints, numbered from 0.

Invariants:

* A folder stays at least until the next one has been copied. Once its checkpoint is committed in the trial's
  directory, a symbolic link to that replaces it, which leads nowhere when retention has removed the checkpoint.
* Folders whose checkpoints are elsewhere (in a bucket) stay while they have `MAX_BYTES` together; the oldest are
  removed first.
* All are removed with the session; those of a killed process by the next one that makes such folders.
"""

from __future__ import annotations

import os
import shutil

from trialpod.storage.scratch import Scratch

MAX_BYTES = 1024**3
"""Maximum size of all folders without a link, besides the newest."""


class WrittenFolders:
    """The folders of one session.

    Args:
        trial_dir: the trial's directory, where its checkpoints are if they are on this machine.
        name: of the folder that they are in, where the trial has no directory.
    """

    def __init__(self, trial_dir: str, name: str) -> None:
        self._trial_dir = trial_dir.removeprefix("file://").rstrip("/")
        self._scratch = Scratch(None)
        self._parent = os.path.join(self._scratch.path, os.path.basename(self._trial_dir) or name)
        self._kept: dict[str, str] = {}  # folder -> where its checkpoint is or will be; the oldest first

    def make(self, step: int) -> str:
        """Return an empty folder in place of the one that had the same number."""
        folder = self.path(step)
        self.remove(folder)
        os.makedirs(folder)
        return folder

    def path(self, step: int) -> str:
        """Return where the folder with this number is."""
        return os.path.join(self._parent, f"checkpoint_{step:06d}")

    def has(self, folder: str) -> bool:
        """Return whether a folder is one of them."""
        return os.path.dirname(folder) == self._parent

    def keep(self, folder: str, name: str) -> None:
        """Let a folder stay whose content was copied as the checkpoint `name`."""
        self._kept[folder] = os.path.join(self._trial_dir, name)
        for each, target in list(self._kept.items())[:-1]:
            if os.path.isdir(target):
                self._link(each)
        older = list(self._kept)[:-1]
        sizes = [_size(each) for each in older]
        while older and sum(sizes) > MAX_BYTES:
            self._link(older.pop(0))
            sizes.pop(0)

    def remove(self, folder: str) -> None:
        """Remove a folder, or the link in its place."""
        self._kept.pop(folder, None)
        if os.path.islink(folder):
            os.unlink(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all of them."""
        self._scratch.remove()

    def _link(self, folder: str) -> None:
        target = self._kept[folder]
        self.remove(folder)
        if self._trial_dir:
            os.symlink(target, folder)


def _size(folder: str) -> int:
    """Return the size of the files in a folder, in bytes."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return found
