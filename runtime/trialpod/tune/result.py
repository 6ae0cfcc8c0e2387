"""`Result`: what one trial reported and left behind.

Invariants: a Result reads files only when it is asked for what is in them; it changes none.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, TrainableError, TrialpodError, nearest
from trialpod.storage.registry import scheme_of
from trialpod.tune.result_keys import SHOULD_CHECKPOINT
from trialpod.tune.results import flattened, lookup, number, read_rows

if TYPE_CHECKING:
    import pandas as pd

    from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
    from trialpod.storage.base import Storage
    from trialpod.tune.checkpoints.checkpoint import Checkpoint
    from trialpod.tune.outcomes import TrialOutcome

log = logging.getLogger(__name__)

_warned: list[str] = []  # that callbacks asked for checkpoints
_PARAMS_FILE = "params.json"
_ERROR_FILE = "error.txt"


class TrialFailedError(TrainableError):
    """A trial failed for good.

    Attributes:
        trial: the trial's name.
        traceback: of the error in the trial's process; may be empty.
        cause: the exception itself, where the trial ran on this machine and it can be pickled; else None.
    """

    cause: BaseException | None = None

    def __init__(self, error: str, trial: str = "", traceback: str = "") -> None:
        super().__init__(error, trial, traceback)
        self.trial = trial
        self.traceback = traceback

    def __str__(self) -> str:
        error = str(self.args[0])
        text = f"trial {self.trial}: {error}" if self.trial else error
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text


class TrialDiedError(TrialFailedError):
    """A trial's process ended without an exception: it was killed, or left by itself."""


def failure(error: str, trial: str, traceback: str, folder: str) -> TrialFailedError:
    """Return the error of a trial that failed, as an instance also of what its code raised, where that is known.

    Args:
        error: its line, "ValueError: what it says".
        trial: the trial's name.
        traceback: may be empty.
        folder: the trial's, on this machine.
    """
    from trialpod.storage.pickled_error import kept_error

    cause = kept_error(folder, error)
    if cause is None and not traceback:
        return TrialDiedError(error, trial)
    if cause is None:
        return TrialFailedError(error, trial, traceback)
    return failed_with(cause, error, trial, traceback)


def failed_with(cause: BaseException, error: str, trial: str = "", traceback: str = "") -> TrialFailedError:
    """Return an error that is an instance also of the class of its cause, where that can be combined."""
    try:
        both = type(f"TrialFailedError({type(cause).__name__})", (TrialFailedError, type(cause)), {})
        made: TrialFailedError = both.__new__(both, *cause.args)
        TrialFailedError.__init__(made, error, trial, traceback)
    except TypeError:  # its class cannot be combined with another, or wants other arguments
        made = TrialFailedError(error, trial, traceback)
    made.__cause__ = made.cause = cause
    return made


class Metrics(dict[str, Any]):
    """One result by its flattened names ("loss/train").

    A group can be had as a dict too: ``metrics["loss"]`` is ``{"train": ...}``, which is how it was reported. It is
    also found by ``in``, `get` and `pop`, and a `copy` can do the same; iterating gives the flattened names.
    """

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        prefix = f"{key}/"
        return isinstance(key, str) and any(name.startswith(prefix) for name in self)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == SHOULD_CHECKPOINT and value and not _warned:
            _warned.append(key)
            log.warning(
                "result['should_checkpoint'] = True in a callback has no effect: trials do not wait for callbacks; "
                "return it from step(), or set CheckpointConfig(checkpoint_frequency=...)"
            )
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[type[Metrics], tuple[dict[str, Any]]]:
        return Metrics, (dict(self),)

    def copy(self) -> Metrics:
        """Return a copy."""
        return Metrics(self)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a metric, or a group of them, and return it; `default` where there is none.

        Raises:
            KeyError: there is none, and no `default`.
        """
        if super().__contains__(key):
            return super().pop(key)
        try:
            group = self[key]
        except KeyError:
            if default:
                return default[0]
            raise
        for name in [name for name in self if name.startswith(f"{key}/")]:
            del self[name]
        return group

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metric, or a group of them, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __missing__(self, key: str) -> dict[str, Any]:
        group: dict[str, Any] = {}
        prefix = f"{key}/"
        for name, value in self.items():
            if name.startswith(prefix):
                inner = group
                *parents, last = name[len(prefix) :].split("/")
                for parent in parents:
                    inner = inner.setdefault(parent, {})
                inner[last] = value
        if not group:
            raise KeyError(key)
        return group


def unknown_metric(name: str, reported: Sequence[str]) -> str:
    """Return the sentence for a metric that no trial reported."""
    guess = nearest(name, reported)
    hint = f" Did you mean {guess!r}?" if guess else ""
    shown = [metric for metric in reported if metric not in _UNINTERESTING]
    return f"no trial reported the metric {name!r}.{hint} Reported: {', '.join(shown or reported) or 'nothing'}"


class Result:
    """What one trial reported and left behind.

    Attributes:
        metrics: its last result; when it reported none, only what is known of it: its id and config. The names are
            flattened ("loss/train"), and ``metrics["loss"]["train"]`` works too.
        checkpoint: its newest checkpoint, or None. One in a bucket is downloaded when it is used first.
        error: why it failed, or None.
        path: where it is stored: its directory, or its URI in a bucket.
        local_path: its directory on this machine, also when it is stored in a bucket; `path` when there is none here.
        best_checkpoints: its checkpoints with the metrics of their results, from worst to best by the experiment's
            checkpoint score; oldest first where it has none. With ``num_to_keep`` only so many: a newest checkpoint
            that is not among the best is only in `checkpoint`.
    """

    def __init__(
        self,
        metrics: dict[str, Any] | None,
        checkpoint: Checkpoint | None,
        error: Exception | None,
        path: str,
        best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None,
        *,
        config: dict[str, Any] | None = None,
        local_path: str = "",
    ) -> None:
        self.metrics = Metrics(metrics or {})
        self.checkpoint = checkpoint
        self.error = error
        self.path = path
        self.local_path = local_path or path
        self.best_checkpoints = best_checkpoints if best_checkpoints is not None else []
        self._config = config
        self._frame: pd.DataFrame | None = None

    @classmethod
    def from_trial(cls, trial: TrialOutcome) -> Result:
        """Return the Result of a trial that a backend ran or loaded."""
        error = None
        if trial.status == "ERROR" or trial.error:
            error = failure(trial.error or "failed without an error", trial.name, trial.traceback, trial.path)
        newest, best = newest_and_best(trial.checkpoint_uri or trial.path, trial.checkpoints, trial.checkpoint_rules)
        metrics = trial.last_result or facts_of(trial)
        path = trial.checkpoint_uri or trial.path
        return cls(metrics, newest, error, path, best, config=trial.config, local_path=trial.path)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Return the Result of the trial in a directory or at a URI, from its files alone.

        Args:
            path: the directory or URI.
            storage_filesystem: as for RunConfig; `path` is in it.

        Raises:
            InvalidInputError: the directory is not a trial's.
            NotSupportedError: `storage_filesystem` is neither S3 nor this machine.
            TrialpodError: a file in it is damaged, or the storage cannot be read.
        """
        from trialpod.storage.checkpoints import open_checkpoints
        from trialpod.tune.location.locations import resolve

        if storage_filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            path = uri_of("Result.from_path(storage_filesystem=...)", path, storage_filesystem)
        location = resolve(path)
        directory = str(location)
        storage = location.storage()
        config = _read_params(storage, directory)
        rows = read_rows(directory, storage)
        if config is None and not rows:
            raise NoSuchResultError(
                f"Result.from_path({directory!r}): neither {_PARAMS_FILE} nor result.json there; "
                "give the directory of one trial, or its URI, {storage_path}/{experiment}/{trial}"
            )
        saved = checkpoints_in(directory, open_checkpoints(storage).committed())
        newest = saved[-1][0] if saved else None
        last = rows[-1] if rows else None
        return cls(last, newest, _read_error(storage, directory), directory, saved, config=config)

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow that `path` is in.

        Raises:
            InvalidInputError: pyarrow is not installed.
        """
        from trialpod.tune.location.filesystems import arrow_filesystem

        return arrow_filesystem(self.path)

    @property
    def log_dir(self) -> Path:
        """`local_path` as older scripts have it."""
        return Path(self.local_path)

    @property
    def config(self) -> dict[str, Any] | None:
        """The trial's config; None only when a directory does not tell."""
        if self._config is not None:
            return self._config
        config: dict[str, Any] | None = self.metrics.get("config")
        return config

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """All results as a pandas DataFrame, one row for each iteration; empty when there are none.

        The config is in columns such as ``config/lr``. Where a retried trial went back to a checkpoint,
        what it reported after that before is not there.

        Raises:
            InvalidInputError: pandas is not installed.
            StorageError: ``result.json`` is damaged.
        """
        if self._frame is None:
            self._frame = frame_of(read_rows(self.local_path))
        return self._frame

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the checkpoint whose result was best.

        Args:
            metric: a metric ("a/b" for nested ones).
            mode: "max" or "min".

        Raises:
            InvalidInputError: `mode` is another one, or no checkpoint's result has the metric.
            NoResultError: the trial has no checkpoint.
        """
        check_mode("Result.get_best_checkpoint", mode)
        if not self.best_checkpoints:
            raise NoResultError(f"no checkpoint exists in {self.path}")
        scored = [
            (value, checkpoint)
            for checkpoint, metrics in self.best_checkpoints
            if (value := number(lookup(metrics, metric))) is not None
        ]
        if not scored:
            reported = sorted({name for _, metrics in self.best_checkpoints for name in metrics})
            raise NoSuchResultError(
                f"Result.get_best_checkpoint(metric={metric!r}): {unknown_metric(metric, reported)}"
            )
        sign = 1 if mode == "max" else -1
        return max(scored, key=lambda entry: -math.inf if entry[0] != entry[0] else sign * entry[0])[1]

    def __repr__(self) -> str:
        return self.described()

    def _repr_html_(self) -> str:
        from trialpod.tune.presentation.html import result_html

        return result_html(self.metrics, self.config, self.error, self.path)

    def described(self, indent: int = 0) -> str:
        """Return its `repr`, in lines that are indented by `indent` spaces."""
        shown = {name: value for name, value in self.metrics.items() if name not in AUTOMATIC_METRICS}
        lines = [f"error={str(self.error.args[0] if self.error.args else self.error)!r}"] if self.error else []
        lines += [
            f"metrics={shown!r}",
            f"path={self.path!r}",
            f"filesystem={scheme_of(self.path) or 'local'!r}",
            f"checkpoint={self.checkpoint!r}",
        ]
        margin = " " * indent
        return f"{margin}Result(\n{margin}  " + f",\n{margin}  ".join(lines) + f"\n{margin})"


def facts_of(trial: TrialOutcome) -> dict[str, Any]:
    """Return what is known of a trial that reported nothing."""
    facts: dict[str, Any] = {"done": True} if trial.status == "TERMINATED" else {}
    facts |= {"trial_id": trial.trial_id, "config": trial.config, **trial.process}
    if trial.ended_at:
        facts["timestamp"] = int(trial.ended_at)
        facts["date"] = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(trial.ended_at))
    if not under_ray():
        facts["experiment_tag"] = trial.experiment_tag
    return facts


class ExperimentFailedError(InvalidInputError):
    """An experiment could not continue: no trial reports its metric, or one of its algorithms raised an error."""


class NoResultError(TrialpodError, RuntimeError):
    """There is nothing that could be chosen as the best."""


class NoSuchResultError(InvalidInputError, NoResultError):
    """What was asked for has no result: a folder that is not a trial's, a metric that no trial reported."""


_UNINTERESTING = frozenset(
    {
        "config",
        "date",
        "done",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "trial_id",
        "checkpoint_dir_name",
    }
)
AUTOMATIC_METRICS = _UNINTERESTING | {
    "episodes_total",
    "should_checkpoint",
    "timesteps_since_restore",
    "timesteps_total",
    "training_iteration",
}


def frame_of(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return results as a pandas DataFrame, with the config in columns such as ``config/lr``.

    Raises:
        InvalidInputError: pandas is not installed.
    """
    frame: pd.DataFrame = import_pandas().DataFrame([flattened(row) for row in rows])
    return frame


def check_mode(where: str, mode: object) -> None:
    """Raise InvalidInputError unless `mode` is "max" or "min"."""
    if mode not in ("max", "min"):
        raise InvalidInputError(f"{where}(mode={mode!r}): mode must be 'max' or 'min'")


def import_pandas() -> Any:
    """Return pandas.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"a DataFrame needs the package {error.name!r}, which is not installed; install it with: "
            "pip install pandas"
        ) from error
    return pd


def newest_and_best(
    location: str, infos: Sequence[CheckpointInfo], rules: CheckpointRules
) -> tuple[Checkpoint | None, list[tuple[Checkpoint, dict[str, Any]]]]:
    """Return the newest of a trial's checkpoints, and the best ones that the rules keep, from worst to best.

    Args:
        location: the trial's directory or URI.
        infos: its checkpoints, oldest first.
        rules: the experiment's.
    """
    from trialpod.storage.checkpoints.retention import ranked

    infos = sorted(infos, key=lambda info: info.index)
    saved = {info.index: entry for info, entry in zip(infos, checkpoints_in(location, infos), strict=True)}
    try:
        order = ranked(infos, rules)
    except InvalidInputError:  # a score that is not a number: the trial has failed of it
        order = list(infos)
    best = [saved[info.index] for info in order][-(rules.num_to_keep or 0) :]
    return (saved[infos[-1].index][0] if infos else None), best


def checkpoints_in(location: str, infos: Sequence[CheckpointInfo]) -> list[tuple[Checkpoint, dict[str, Any]]]:
    """Return checkpoints with the metrics of their results, oldest first.

    Args:
        location: the trial's directory or URI.
        infos: its checkpoints.
    """
    ordered = sorted(infos, key=lambda info: info.index)
    if "://" in location:
        from trialpod.tune.checkpoints.checkpoint import StoredCheckpoint

        return [(StoredCheckpoint(location, info), Metrics(info.metrics)) for info in ordered]
    from trialpod.tune.checkpoints.checkpoint import Checkpoint

    return [(Checkpoint(os.path.join(location, info.name)), Metrics(info.metrics)) for info in ordered]


def _read_params(storage: Storage, location: str) -> dict[str, Any] | None:
    from trialpod.storage.base import KeyMissingError

    try:
        params = json.loads(storage.read(_PARAMS_FILE))
    except KeyMissingError:
        return None
    except ValueError as error:
        raise InvalidInputError(f"{location}/{_PARAMS_FILE} is not JSON: {error}") from error
    return params if isinstance(params, dict) else None


def _read_error(storage: Storage, location: str) -> TrialFailedError | None:
    from trialpod.storage.base import KeyMissingError

    try:
        text = storage.read(_ERROR_FILE).decode(errors="replace").strip()
    except KeyMissingError:
        return None
    if not text:
        return None
    latest = text[text.rfind("Failure # ") :] if "Failure # " in text else text
    return failure(latest.splitlines()[-1], location.rpartition("/")[2], latest, location)


def __getattr__(name: str) -> Any:
    """Look up the names of result keys, which Ray Tune has in its module of this name: ``tune.result.DONE``."""
    from trialpod.tune import result_keys

    if not name.isupper() or not hasattr(result_keys, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(result_keys, name)
