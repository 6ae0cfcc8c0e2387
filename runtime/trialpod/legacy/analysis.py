"""`Analysis`: the class of Ray Tune 0.8 to 1.13 for an experiment that is read from its directory."""

from __future__ import annotations

import os
from typing import Any

from trialpod.legacy.experiment_analysis import ExperimentAnalysis


class _BaseOfAll(type):
    """In Ray `Analysis` is the base class of `ExperimentAnalysis`."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, ExperimentAnalysis)


class Analysis(ExperimentAnalysis, metaclass=_BaseOfAll):
    """Answers questions about the trials of an experiment.

    Args:
        experiment_dir: the experiment's directory or URI.
        default_metric: for the methods that are given none.
        default_mode: "max" or "min", the same.
        file_type: as for `set_filetype`.

    Raises:
        InvalidInputError: there is no experiment, or the mode or the type is another one.
    """

    def __init__(
        self,
        experiment_dir: str | os.PathLike[str],
        default_metric: str | None = None,
        default_mode: str | None = None,
        file_type: str | None = None,
    ) -> None:
        super().__init__(experiment_dir, default_metric=default_metric, default_mode=default_mode)
        if file_type is not None:
            self.set_filetype(file_type)
