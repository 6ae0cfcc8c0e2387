"""`StorageContext`: the paths of a trial and its experiment, by the names that Ray's object of that name has."""

from __future__ import annotations

import os
from typing import Any


class StorageContext:
    """The paths of a trial and its experiment.

    Args:
        trial: the trial's directory or URI; "" for an experiment without a trial.
        experiment: the experiment's; None is the folder that the trial is in.
    """

    storage_filesystem: Any = None

    def __init__(self, trial: str = "", experiment: str | None = None) -> None:
        self.trial_fs_path = self.trial_driver_staging_path = trial
        self.trial_dir_name = os.path.basename(trial)
        place = os.path.dirname(trial) if experiment is None else experiment
        self.experiment_fs_path = self.experiment_driver_staging_path = place
        self.experiment_dir_name = os.path.basename(place)
        self.storage_fs_path = os.path.dirname(place)
