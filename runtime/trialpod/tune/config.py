"""What a user configures besides the Trainable and its search space, with Ray Tune's argument names and defaults.

Invariants:

* A value that cannot work is refused when the object is made, with the argument, the value and what is allowed.
* An argument that Ray has and trialpod does not support is refused unless it has its default: nothing is
  silently ignored.
* The objects may be changed after they were made, as Ray's may; a `Tuner` checks them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, WrongTypeError, refuse_stand_ins
from trialpod.tune.arguments import choose, is_int, names_nearest, plain_int, refuse
from trialpod.tune.plugins.auto import AUTO, samples_by_default
from trialpod.tune.plugins.objectives import Objective, parse_objectives
from trialpod.tune.results import flattened
from trialpod.tune.trial_config import CheckpointConfig, FailureConfig

if TYPE_CHECKING:
    from datetime import timedelta

    from trialpod.tune.callback import Callback
    from trialpod.tune.progress_reporter import ProgressReporter
    from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
    from trialpod.tune.stopper.stopper import Stopper
    from trialpod.tune.sync_config import SyncConfig

IF_EXISTS = ("resume", "add", "fresh", "error")
TYPE_OF_STOP = "a dict of metric names to numbers, a Stopper, a function (trial_id, result) -> bool, or a list"


@names_nearest
@dataclass
class RunConfig:
    """How an experiment runs and where its results go.

    Args:
        name: the experiment's name, which is its directory below `storage_path`; None makes one from the
            Trainable's name and the date.
        storage_path: where experiments are stored, a path, ``file:///path`` or ``s3://bucket/prefix``; None means
            ``~/trialpod-results``. With a bucket the experiment's directory is in ``~/trialpod-results``, or in the
            folder that the variable TRIALPOD_WORK_DIR names, and what it holds is copied to the bucket all the time.
        storage_filesystem: a file system of pyarrow or fsspec, of S3 or of this machine, that `storage_path` is in:
            ``bucket/prefix``. It becomes a URI; keys in it become the variables AWS_ACCESS_KEY_ID and
            AWS_SECRET_ACCESS_KEY of this process.
        failure_config: what happens when a trial fails.
        checkpoint_config: which checkpoints are made and kept.
        sync_config: a `SyncConfig`; nothing has to be synchronised, because trials write to the storage.
        verbose: 0 prints nothing; 1 the experiment's progress, a summary, and what trials print, each line behind the
            trial's name and process: ``(train_1a2b3_00003 pid=4242) epoch 0``; 2 also each start, end and result of
            a trial; 3 also decisions and checkpoints, and all values of results. None means 1. What comes faster
            than can be read is in the trials' ``log.txt`` and ``result.json``. Trials in pods: `trialpod logs`.
        stop: when a trial is over: a dict (the first metric that reaches its number), a Stopper, a function
            ``(trial_id, result) -> bool``, or a list of Stoppers and functions (any of them).
        callbacks: `Callback` objects, which run in this process while the experiment runs.
        progress_reporter: a `ProgressReporter`, such as `CLIReporter`, in place of the usual display.
        log_to_file: names for the file with the trials' output, besides ``log.txt``: True means ``stdout`` and
            ``stderr``, a string is one name, a pair is two. All of them lead to what both streams have had, in order.
        local_dir: the older name of `storage_path`; not used beside ``SyncConfig(upload_dir=...)``.
        if_exists: what happens when an experiment of that name is there already. "resume", the default, continues it:
            unfinished trials resume, a larger budget adds trials, and what must not change between two runs is
            refused. "fresh" moves it aside, to NAME.1 or the like, and starts over. "add" puts new trials beside its
            trials in the same directory, as Ray Tune does (the default of `tune.run`, and under the name ``ray``);
            only the new ones are this experiment's. "error" refuses. The variable TRIALPOD_IF_EXISTS goes before it.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
        NotSupportedError: `storage_filesystem` is another one.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: int | None = None
    stop: (
        Mapping[str, Any]
        | Stopper
        | Callable[[str, dict[str, Any]], bool]
        | Sequence[Stopper | Callable[[str, dict[str, Any]], bool]]
        | None
    ) = None
    callbacks: Sequence[Callback] | None = None
    progress_reporter: ProgressReporter | None = None
    log_to_file: bool | str | tuple[str, str] = False
    local_dir: str | os.PathLike[str] | None = None
    if_exists: Literal["resume", "add", "fresh", "error"] | None = None

    def __post_init__(self) -> None:
        if self.storage_filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            self.storage_path = uri_of(
                "RunConfig(storage_filesystem=...)", self.storage_path, self.storage_filesystem
            )
            self.storage_filesystem = None
        if self.local_dir is not None:
            if self.storage_path is not None:
                raise InvalidInputError(
                    "RunConfig(storage_path=..., local_dir=...): local_dir is an older name of storage_path; give one"
                )
            from trialpod.tune.sync_config import SyncConfig, warn_of_unused_local_dir

            if isinstance(self.sync_config, SyncConfig) and self.sync_config.storage is not None:
                warn_of_unused_local_dir("RunConfig", self.local_dir, self.sync_config.storage)
            else:
                self.storage_path = self.local_dir
            self.local_dir = None
        self.validate(later=under_ray())

    def validate(self, *, later: bool = False) -> None:
        """Raise InvalidInputError for what cannot work; with `later`, not for what Ray refuses when it is used."""
        where = "RunConfig"
        refuse_stand_ins(*vars(self).values())
        if self.name is not None:
            for part in self.name.split("/") if under_ray() and isinstance(self.name, str) else [self.name]:
                check_name(where, part)
        if (
            self.storage_path is not None
            and not later
            and (not isinstance(self.storage_path, (str, os.PathLike)) or not os.fspath(self.storage_path))
        ):
            refuse(where, "storage_path", self.storage_path, "a path or URI, or None")
        if self.storage_filesystem is not None:
            refuse(where, "storage_filesystem", self.storage_filesystem, "given when the RunConfig is made")
        if self.sync_config is not None:
            from trialpod.tune.sync_config import SyncConfig

            _check_type(where, "sync_config", self.sync_config, SyncConfig)
            self.sync_config.validate()
            both = self.sync_config.upload_dir is not None and self.storage_path is not None
            if both and self.sync_config.own_syncer is None:
                raise InvalidInputError(
                    f"{where}(storage_path={self.storage_path!r}, sync_config=SyncConfig(upload_dir="
                    f"{self.sync_config.upload_dir!r})): both say where to store; leave upload_dir out"
                )
        if self.callbacks is not None:
            from trialpod.tune.callback_list import check_callbacks

            check_callbacks(where, self.callbacks)
        if self.progress_reporter is not None:
            from trialpod.tune.progress_reporter import check_reporter

            check_reporter(where, self.progress_reporter)
        if self.if_exists is not None:
            choose(where, "if_exists", self.if_exists, IF_EXISTS)
        if (
            self.verbose is not None
            and self.verbose not in (0, 1, 2, 3)
            and not (under_ray() and is_int(self.verbose))
        ):
            refuse(where, "verbose", self.verbose, "0, 1, 2 or 3")
        if self.failure_config is not None:
            _check_type(where, "failure_config", self.failure_config, FailureConfig)
            self.failure_config.validate()
        if self.checkpoint_config is not None:
            _check_type(where, "checkpoint_config", self.checkpoint_config, CheckpointConfig)
            self.checkpoint_config.validate()
        check_stop(where, self.stop)
        log_files(self.log_to_file)


@dataclass(frozen=True)
class NewTrial:
    """What the functions that name trials get to see."""

    trial_id: str
    experiment_tag: str  # "2_lr=0.0132"
    trainable_name: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The config by flattened names ("layers/width")."""
        return flattened(self.config)

    def __str__(self) -> str:
        return f"{self.trainable_name}_{self.trial_id}"


@names_nearest
@dataclass
class TuneConfig:
    """How the search space is explored.

    Args:
        mode: "max" or "min": whether a larger or a smaller `metric` is better.
        metric: the reported metric that is tuned ("a/b" for nested ones).
        search_alg: proposes the trials, an object or a name; None samples the search space at random and walks
            through its grids.
        scheduler: stops and pauses trials by their results, an object or a name; None stops none.
        num_samples: how often the search space is sampled (its grids are walked through as often); -1 samples
            without end, until `time_budget_s`, another budget or a Stopper ends the experiment. Left out it is 1, or
            -1 with `algorithm="auto"` and a budget of time or hours.
        max_concurrent_trials: the most trials that run at once; None or 0 is as many as the resources allow.
        time_budget_s: seconds (or a timedelta) after which the experiment is stopped.
        reuse_actors: run trials one after another in the same processes. A class Trainable must implement
            `reset_config`.
        trial_name_creator: called with a `NewTrial`, returns the trial's name; its directory's name begins with it.
        trial_dirname_creator: called with a `NewTrial`, returns the name of the trial's directory. Of equal names
            the trial's id is appended to the later ones.
        seed: makes the default search repeatable. Ray has no such argument; there it is an argument of the
            search algorithm, which works here too.
        chdir_to_trial_dir: whether trials run in their own directories; False leaves them in that of the script,
            where relative paths mean the same for all of them. None means True.
        max_trial_hours: hours of all trials together, after which the experiment is stopped as after its
            `time_budget_s`; what a trial did before it failed or was moved counts. As `spec.maxTrialHours` of a
            manifest. Ray has no such argument.
        max_gpu_hours: the same for the GPUs that trials have: an hour of a trial with two counts as two
            (`spec.maxGpuHours`). Ray has no such argument.
        algorithm: "auto" takes the scheduler and the search of that name together, in place of `scheduler` and
            `search_alg`; it needs a `metric`. With a budget of hours, what the best trial needs to be trained to its
            end is kept. As `spec.algorithm` of a manifest. Ray has no such argument.
        stop_when_not_worth: no trial starts any more when the metric is expected to improve by less than this in the
            next hour (`spec.stopWhenNotWorth`). Ray has no such argument.
        repeats: `{"top": 3, "times": 5}` runs the 3 best configs 5 times more at the end; the winner has the best
            mean of them. With `"seed_parameter": NAME` the config of a repeat has its number there (`spec.repeats`).
            `Repeater` repeats every config instead. Ray has no such argument.
        metrics: several objectives in place of `metric` and `mode`: a list of
            `{"name": "loss", "mode": "min", "threshold": 0.5}`. A trial whose value is worse than a threshold, which
            may be left out, is not accepted as best. As `spec.metrics` of a manifest. Ray has no such argument.
        warm_start: `{"experiments": ["climb", ...]}` names earlier experiments, kept beside this one or by directory
            or URI, whose best configs are tried first and are a prior while that pays; `{"auto": True}` takes all
            beside this one that share at least half of its parameters. With the search auto. As `spec.warmStart` of
            a manifest. Ray has no such argument.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
    """

    mode: Literal["max", "min"] | None = None
    metric: str | None = None
    search_alg: Any = None
    scheduler: TrialScheduler | str | None = None
    num_samples: int = cast("int", None)
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = False
    trial_name_creator: Callable[[NewTrial], str] | None = None
    trial_dirname_creator: Callable[[NewTrial], str] | None = None
    chdir_to_trial_dir: bool | None = None
    seed: int | None = None
    max_trial_hours: float | None = None
    max_gpu_hours: float | None = None
    algorithm: Literal["auto"] | None = None
    stop_when_not_worth: float | None = None
    repeats: dict[str, Any] | None = None
    metrics: list[dict[str, Any]] | None = None
    warm_start: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if cast("int | None", self.num_samples) is None:
            budgets = (self.time_budget_s, self.max_trial_hours, self.max_gpu_hours)
            self.num_samples = samples_by_default(self.algorithm, budgets)
        for argument in ("num_samples", "max_concurrent_trials", "seed"):
            setattr(self, argument, plain_int(getattr(self, argument)))
        if cast("bool | None", self.reuse_actors) is None:
            self.reuse_actors = False
        self.validate(later=under_ray())

    def validate(self, *, later: bool = False) -> None:
        """Raise InvalidInputError for what cannot work; with `later`, not for what Ray refuses when it is used."""
        where = "TuneConfig"
        refuse_stand_ins(*vars(self).values())
        if self.mode is not None:
            choose(where, "mode", self.mode, ("max", "min"))
        if self.metric is not None and not later and (not isinstance(self.metric, str) or not self.metric):
            refuse(where, "metric", self.metric, "the name of a metric that the Trainable reports")
        if not is_int(self.num_samples):
            raise WrongTypeError(f"{where}(num_samples={self.num_samples!r}): num_samples must be an integer")
        if self.num_samples < 1 and self.num_samples != -1:
            refuse(where, "num_samples", self.num_samples, "an integer of at least 1, or -1 for no limit")
        limit = self.max_concurrent_trials
        if limit is not None and (not is_int(limit) or (limit < 0 and not under_ray())):
            refuse(where, "max_concurrent_trials", limit, "an integer of at least 1, or 0 or None for no limit")
        seconds(self.time_budget_s)
        self._check_metrics(where)
        self._check_algorithm(where)
        for argument, what in _POSITIVE.items():
            _check_positive(where, argument, getattr(self, argument), what)
        if self.stop_when_not_worth is not None and self.metric is None:
            raise InvalidInputError(
                f"{where}: stop_when_not_worth is an improvement of a metric; give metric and mode"
            )
        self._check_repeats(where)
        self._check_warm_start(where)
        if not isinstance(self.reuse_actors, bool):
            refuse(where, "reuse_actors", self.reuse_actors, "True or False")
        for argument in ("trial_name_creator", "trial_dirname_creator"):
            if (creator := getattr(self, argument)) is not None and not callable(creator):
                refuse(where, argument, creator, "a function (trial) -> str, or None")
        if self.seed is not None and not is_int(self.seed):
            refuse(where, "seed", self.seed, "an integer or None")
        if self.chdir_to_trial_dir not in (None, True, False):
            refuse(where, "chdir_to_trial_dir", self.chdir_to_trial_dir, "True, False or None")

    @property
    def objectives(self) -> list[Objective]:
        """The metrics of a list, checked; none without one."""
        return [] if self.metrics is None else parse_objectives(self.metrics)

    def _check_metrics(self, where: str) -> None:
        if self.metrics is None:
            return
        try:
            parse_objectives(self.metrics)
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {error}") from None
        for argument in ("metric", "mode"):
            if getattr(self, argument) is not None:
                raise InvalidInputError(
                    f"{where}: metrics and {argument} are both given, and metrics stands for metric and mode; remove "
                    f"{argument}, or metrics"
                )
        for argument in ("stop_when_not_worth", "repeats", "algorithm"):
            if getattr(self, argument) is not None:
                raise InvalidInputError(
                    f"{where}: {argument} compares trials by one metric, and metrics is a list of objectives; give "
                    f"metric and mode instead, or leave {argument} out"
                )

    def _check_repeats(self, where: str) -> None:
        given = self.repeats
        if given is None:
            return
        names = {"top", "times", "seed_parameter"}
        numbers = isinstance(given, dict) and all(
            is_int(given.get(name)) and 1 <= given[name] <= most for name, most in (("top", 100), ("times", 99))
        )
        if not numbers or set(given) - names or not isinstance(given.get("seed_parameter", ""), str):
            expected = 'a dict with "top" (1 to 100), "times" (1 to 99) and perhaps "seed_parameter", or None'
            refuse(where, "repeats", given, expected)
        if self.metric is None:
            raise InvalidInputError(f"{where}: repeats compare configs by a metric; give metric and mode")

    def _check_warm_start(self, where: str) -> None:
        given = self.warm_start
        if given is None:
            return
        names = given.get("experiments", []) if isinstance(given, dict) else None
        fitting = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
        automatic = fitting and given.get("auto", False)
        if not fitting or set(given) - {"experiments", "auto"} or automatic not in (True, False):
            fitting = False
        if not fitting or bool(names) == automatic:
            expected = '{"experiments": [NAME, ...]}, {"auto": True} or None'
            refuse(where, "warm_start", given, expected)
        if self.algorithm is None and self.search_alg is None:
            raise InvalidInputError(f'{where}: warm_start is advice for the search auto; give algorithm="auto"')

    def _check_algorithm(self, where: str) -> None:
        if self.algorithm is None:
            return
        choose(where, "algorithm", self.algorithm, (AUTO,))
        for argument in ("scheduler", "search_alg"):
            if getattr(self, argument) is not None:
                raise InvalidInputError(
                    f"{where}: algorithm={self.algorithm!r} and {argument} are both given, and algorithm stands for "
                    f"scheduler and search_alg; remove {argument}, or algorithm"
                )
        if self.metric is None:
            raise InvalidInputError(
                f"{where}: algorithm={self.algorithm!r} compares trials by a metric; give metric and mode"
            )


def _check_type(where: str, argument: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        hint = f"; write {argument}={expected.__name__}(...)" if isinstance(value, Mapping) else ""
        refuse(where, argument, value, f"a {expected.__name__} or None{hint}")


def check_name(where: str, name: object) -> None:
    """Raise InvalidInputError unless `name` can be an experiment's name, which is also a directory's."""
    if not isinstance(name, str) or not name or name.startswith(".") or any(c in "/\\\0\n" for c in name):
        refuse(where, "name", name, "a name without slashes and line breaks that does not start with a dot")


def check_stop(where: str, stop: object) -> None:
    """Raise InvalidInputError unless `stop` is one of the forms that RunConfig describes."""
    if stop is None:
        return
    if isinstance(stop, Mapping):
        stop_numbers(where, stop)
    elif isinstance(stop, (list, tuple)):
        for entry in stop:
            if isinstance(entry, Mapping) or not callable(entry):
                refuse(where, "stop", stop, "a list of Stoppers and functions when it is a list")
            _check_stop_function(where, entry)
    elif callable(stop) and not isinstance(stop, type):
        _check_stop_function(where, stop)
    else:
        refuse(where, "stop", stop, TYPE_OF_STOP)


def _check_stop_function(where: str, function: Callable[..., Any]) -> None:
    import inspect

    try:
        inspect.signature(function).bind("trial_id", {})
    except TypeError as error:
        raise InvalidInputError(
            f"{where}(stop={function!r}): a stop function is called with (trial_id, result), but {error}"
        ) from error
    except ValueError:
        return  # a callable written in C does not tell its signature


def stop_numbers(where: str, stop: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return a ``stop`` dict with nested names flattened ("a/b") and its values as floats.

    Raises:
        InvalidInputError: a name is not a string or a value is not a number.
    """
    numbers: dict[str, float] = {}
    for key, value in stop.items():
        if not isinstance(key, str) or not key:
            refuse(where, "stop", dict(stop), "a dict whose keys are names of metrics")
        if isinstance(value, Mapping):
            numbers.update(stop_numbers(where, value, f"{prefix}{key}/"))
            continue
        try:
            numbers[prefix + key] = float(value)
        except (TypeError, ValueError):
            numbers[prefix + key] = float("nan")
        if isinstance(value, str) or numbers[prefix + key] != numbers[prefix + key]:
            refuse(where, f"stop[{prefix + key!r}]", value, "a number: the trial is over when its metric reaches it")
    return numbers


def seconds(value: float | timedelta | None) -> float | None:
    """Return a time budget in seconds.

    Raises:
        InvalidInputError: it is not a positive number or timedelta.
    """
    if value is None:
        return None
    total = getattr(value, "total_seconds", None)
    number = total() if callable(total) else value
    if isinstance(number, bool) or not isinstance(number, Real) or not float(number) > 0:
        refuse("TuneConfig", "time_budget_s", value, "a positive number of seconds, a timedelta, or None")
    return float(number)


_POSITIVE = {
    "max_trial_hours": "number of hours",
    "max_gpu_hours": "number of hours",
    "stop_when_not_worth": "improvement of the metric",
}


def _check_positive(where: str, argument: str, value: object, what: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        refuse(where, argument, value, f"a positive {what}, or None")


def log_files(log_to_file: object) -> tuple[str, str] | None:
    """Return the names of the files for stdout and stderr that ``log_to_file`` asks for, or None for none.

    Raises:
        InvalidInputError: it has another form than RunConfig describes.
    """
    if log_to_file is None or log_to_file is False:
        return None
    if log_to_file is True:
        return ("stdout", "stderr")
    names = (log_to_file, log_to_file) if isinstance(log_to_file, str) else log_to_file
    pair = tuple(names) if isinstance(names, Iterable) else ()
    if len(pair) != 2 or not all(isinstance(name, str) and name and os.path.basename(name) == name for name in pair):
        refuse("RunConfig", "log_to_file", log_to_file, "True, False, a file name, or a pair of file names")
    return (pair[0], pair[1])
