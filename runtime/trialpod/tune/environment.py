"""The settings that a `Tuner` takes from environment variables: the one place that reads them.

``trialpod run script.py`` sets them to carry its options into a script that it does not change. So they win over what
the script says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.tune.config import IF_EXISTS as IF_EXISTS_VALUES
from trialpod.tune.config import check_name
from trialpod.tune.report_values import LENIENT_VARIABLE as NOT_STRICT

if TYPE_CHECKING:
    from trialpod.tune.callback import Callback

RAY_CALLBACKS = "RAY_TUNE_CALLBACKS"
RESULT_DIR = "TUNE_RESULT_DIR"
"""Ray Tune's name for where experiments are stored that do not say it."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the environment sets; None means that it does not.

    Attributes:
        run_name: the experiment's name.
        storage_path: where experiments are stored.
        max_concurrent: the most trials that run at once.
        resume: continue with the experiment of that name if there is one.
        if_exists: what becomes of the results of an experiment of that name.
        strict_metric: whether a trial that never reports the experiment's metric has failed.
        default_storage: where experiments are stored that do not say it.
        callbacks: classes, "module.Class", of which an object each receives all events, after the script's own.
    """

    run_name: str | None = None
    storage_path: str | None = None
    max_concurrent: int | None = None
    resume: bool = False
    if_exists: str | None = None
    strict_metric: bool = True
    default_storage: str | None = None
    callbacks: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Overrides:
        """Return the settings of an environment."""
        name = environ.get(variables.RUN_NAME) or None
        if name is not None:
            check_name(f"variable {variables.RUN_NAME}: RunConfig", name)
        return cls(
            run_name=name,
            storage_path=environ.get(variables.STORAGE) or None,
            max_concurrent=_positive(variables.MAX_CONCURRENT, environ.get(variables.MAX_CONCURRENT, "")),
            resume=variables.is_on(variables.RESUME, environ.get(variables.RESUME, "")),
            if_exists=_if_exists(environ.get(variables.IF_EXISTS, "")),
            strict_metric=not variables.is_on(NOT_STRICT, environ.get(NOT_STRICT, "")),
            default_storage=environ.get(RESULT_DIR) or None,
            callbacks=tuple(
                dict.fromkeys([*_listed(environ, variables.CALLBACKS), *_listed(environ, RAY_CALLBACKS)])
            ),
        )

    def made_callbacks(self) -> list[Callback]:
        """Return an object of each class in `callbacks`."""
        return [_made(path) for path in self.callbacks]


def _if_exists(text: str) -> str | None:
    lowered = text.strip().lower()
    if lowered and lowered not in IF_EXISTS_VALUES:
        raise InvalidInputError(
            f"variable {variables.IF_EXISTS}={text!r}: must be one of {', '.join(IF_EXISTS_VALUES)}"
        )
    return lowered or None


def _listed(environ: Mapping[str, str], variable: str) -> list[str]:
    return [part.strip() for part in environ.get(variable, "").split(",") if part.strip()]


def _made(path: str) -> Callback:
    from importlib import import_module

    from trialpod.tune.callback import Callback

    where = f"variable {variables.CALLBACKS} or {RAY_CALLBACKS}: {path!r}"
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module:
        raise InvalidInputError(f'{where} must name a class as "module.Class"')
    try:
        cls = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"{where} cannot be imported: {error}") from error
    if not isinstance(cls, type) or not issubclass(cls, Callback):
        raise InvalidInputError(f"{where} must be a subclass of tune.Callback")
    try:
        return cls()
    except TypeError as error:
        raise InvalidInputError(f"{where} must be a class that can be made without arguments: {error}") from error


def _positive(variable: str, text: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidInputError(f"variable {variable}={text!r}: must be an integer of at least 1")
    return int(text)
