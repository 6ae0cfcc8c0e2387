"""`TrainableUtil`: where checkpoints of class Trainables lie, as scripts of Ray's second generation asked for it."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from trialpod.errors import CheckpointError
from trialpod.storage.layout import checkpoint_name

_CHECKPOINT = re.compile(r"checkpoint_(\d+)")


class TrainableUtil:
    """Functions about checkpoint directories: ``checkpoint_000012``."""

    @staticmethod
    def find_checkpoint_dir(checkpoint_path: str) -> str:
        """Return the checkpoint directory that a path is in, or is.

        Raises:
            CheckpointError: it is in none.
        """
        folder = os.path.abspath(checkpoint_path)
        while folder != os.path.dirname(folder):
            if os.path.isdir(folder) and _CHECKPOINT.fullmatch(os.path.basename(folder)):
                return folder
            folder = os.path.dirname(folder)
        raise CheckpointError(f"{checkpoint_path} is in no checkpoint directory; they are called checkpoint_000000")

    @staticmethod
    def make_checkpoint_dir(checkpoint_dir: str, index: int | str, override: bool = False) -> str:
        """Make and return the directory of a checkpoint.

        Args:
            checkpoint_dir: the trial's directory.
            index: the checkpoint's number, or a suffix.
            override: remove what is there already.
        """
        name = checkpoint_name(index) if isinstance(index, int) else f"checkpoint_{index}"
        folder = os.path.join(checkpoint_dir, name)
        if override and os.path.exists(folder):
            shutil.rmtree(folder)
        os.makedirs(folder, exist_ok=True)
        return folder

    @staticmethod
    def remove_checkpoint_dir(checkpoint_dir: str) -> None:
        """Remove a checkpoint's directory."""
        shutil.rmtree(checkpoint_dir)

    @staticmethod
    def get_checkpoints_paths(logdir: str) -> Any:
        """Return the checkpoints in a trial's directory as a data frame: training_iteration, chkpt_path.

        The training iteration is that of the checkpoint's metrics where it has any, else its number.
        """
        import pandas as pd

        from trialpod.tune.result import Result

        rows = []
        for checkpoint, metrics in Result.from_path(logdir).best_checkpoints or []:
            found = _CHECKPOINT.fullmatch(os.path.basename(checkpoint.path))
            number = int(found.group(1)) if found else None
            rows.append((metrics.get("training_iteration", number), checkpoint.path))
        return pd.DataFrame(rows, columns=["training_iteration", "chkpt_path"])
