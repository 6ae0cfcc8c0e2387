"""`TunerInternal`: Ray Tune's name for what does the work behind its `Tuner`. Here that is the `Tuner` itself."""

from __future__ import annotations

import dataclasses
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.config import RunConfig, TuneConfig
from trialpod.tune.result_grid import ResultGrid
from trialpod.tune.tuner import Tuner


class TunerInternal:
    """Makes a `Tuner`, or restores one.

    Args:
        restore_path: the directory or URI of an experiment to continue with.
        resume_config: which of its trials continue: an object with the attributes `resume_unfinished`,
            `resume_errored` and `restart_errored`.
        trainable: the Trainable; needed also to restore.
        param_space: the search space.
        tune_config: how to search.
        run_config: how to run.
        _tuner_kwargs: accepted for compatibility; must be empty.

    Raises:
        InvalidInputError: an argument cannot be used.
    """

    def __init__(
        self,
        restore_path: str | None = None,
        resume_config: Any = None,
        trainable: Any = None,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        _tuner_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if _tuner_kwargs:
            raise InvalidInputError(
                f"TunerInternal(_tuner_kwargs={_tuner_kwargs!r}): give run_config and tune_config"
            )
        if trainable is None:
            raise InvalidInputError(
                "TunerInternal(trainable=None): give the Trainable, also to restore an experiment"
            )
        if restore_path is None:
            self._tuner = Tuner(trainable, param_space=param_space, tune_config=tune_config, run_config=run_config)
            return
        names = ("resume_unfinished", "resume_errored", "restart_errored")
        flags: dict[str, Any] = {}
        for name in names:
            if hasattr(resume_config, name):
                flags[name] = bool(getattr(resume_config, name))
        self._tuner = Tuner.restore(restore_path, trainable, param_space=param_space, **flags)

    def fit(self) -> ResultGrid:
        """Run the experiment; see `Tuner.fit`."""
        return self._tuner.fit()

    def get_results(self) -> ResultGrid:
        """Return its results; see `Tuner.get_results`."""
        return self._tuner.get_results()

    def get_run_config(self) -> RunConfig:
        """Return a copy of how it runs."""
        return dataclasses.replace(self._tuner._run_config)  # noqa: SLF001 - two names of one thing
