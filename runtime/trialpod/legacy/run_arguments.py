"""What the arguments of `tune.run` and `tune.Experiment`, of all versions of Ray Tune, mean for a `Tuner`.

Invariants: an older name and its newer one together are refused; what trialpod has no counterpart for is refused
unless it has the value that changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from trialpod.errors import InvalidInputError, NotSupportedError, nearest
from trialpod.legacy.run_options import with_run_options
from trialpod.tune.arguments import UnknownArgumentError
from trialpod.tune.config import RunConfig, TuneConfig
from trialpod.tune.registry import resolve_trainable
from trialpod.tune.resources import ATTRIBUTE, resources_of, with_resources
from trialpod.tune.sync_config import SyncConfig, warn_of_unused_local_dir
from trialpod.tune.trial_config import CheckpointConfig, FailureConfig
from trialpod.tune.tuner import Tuner


class TrialExecutor:
    """What `tune.run(trial_executor=...)` accepts: the executor of Ray's, which an experiment here does not use."""


_NOT_SUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "trial_executor": ((None, TrialExecutor), "leave it out"),
    "sync_to_cloud": ((None, False, True), "give storage_path an s3:// URI instead"),
    "sync_to_driver": ((None, False, True), "leave it out: trials write to storage_path"),
    "sync_function": ((None,), "give storage_path an s3:// URI instead"),
    "with_server": ((None, False), "use the command `trialpod` to look at an experiment"),
    "server_port": ((object,), "leave it out"),  # of the server that `with_server` starts
    "global_checkpoint_period": ((None, "auto", Real), "leave it out: every event is journaled"),
    "queue_trials": ((None, False, True), "leave it out: trials wait for resources"),
    "ray_auto_init": ((None, False, True), "leave it out"),
    "return_trials": ((None, False), "use the .trials of what tune.run returns"),
    "sync_on_checkpoint": ((None, False, True), "leave it out"),
    "checkpoint_keep_all_ranks": ((None, False), "leave it out: a trial is one process"),
    "checkpoint_upload_from_workers": ((None, False), "leave it out: a trial puts its checkpoints into the storage"),
    "trial_runner": ((None,), "leave it out"),
    "concurrent": ((None, False, True), "leave it out"),
}
"""Name -> the values, or classes of values, that change nothing, and what to do instead of another one."""

_CHECKPOINTS = {
    "keep_checkpoints_num": "num_to_keep",
    "checkpoint_score_attr": "checkpoint_score_attribute",
    "checkpoint_freq": "checkpoint_frequency",
    "checkpoint_at_end": "checkpoint_at_end",
}
OF_A_RUN = frozenset({"chdir_to_trial_dir", "loggers"})
"""Older arguments that a call with `Experiment` objects takes for those of them that do not have their own."""

OF_AN_EXPERIMENT = frozenset({"local_dir", "upload_dir", *_CHECKPOINTS})
OLDER = frozenset({*_NOT_SUPPORTED, *OF_AN_EXPERIMENT, *OF_A_RUN})
_INTERNAL = frozenset({"_remote", "_remote_string_queue", "_entrypoint", "_experiment_checkpoint_dir"})


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """The arguments of one experiment by their current names; None = not given."""

    where: str  # for messages: "tune.run"
    trainable: Any
    name: str | None = None
    metric: str | None = None
    mode: Any = None
    stop: Any = None
    time_budget_s: Any = None
    config: Mapping[str, Any] | None = None
    resources_per_trial: Any = None
    num_samples: int = 1
    storage_path: Any = None
    search_alg: Any = None
    scheduler: Any = None
    checkpoint_config: CheckpointConfig | None = None
    verbose: int | None = None
    progress_reporter: Any = None
    log_to_file: Any = False
    trial_name_creator: Any = None
    trial_dirname_creator: Any = None
    sync_config: SyncConfig | None = None
    max_failures: int = 0
    fail_fast: Any = False
    reuse_actors: bool = False
    callbacks: Any = None
    max_concurrent_trials: int | None = None
    chdir_to_trial_dir: Any = None
    export_formats: Sequence[str] | None = None
    restore: Any = None
    loggers: Any = None

    def tuner(self) -> Tuner:
        """Return the `Tuner` that they describe."""
        trainable = with_run_options(
            resolve_trainable(self.trainable),
            restore=checkpoint_path(self.where, self.restore),
            export_formats=_formats(self.where, self.trainable, self.export_formats),
        )
        return Tuner(
            _with_resources(self.where, trainable, self.resources_per_trial),
            param_space=_space(self.where, self.config),
            tune_config=TuneConfig(
                metric=self.metric,
                mode=self.mode,
                search_alg=self.search_alg,
                scheduler=self.scheduler,
                num_samples=self.num_samples,
                max_concurrent_trials=self.max_concurrent_trials,
                time_budget_s=self.time_budget_s,
                reuse_actors=bool(self.reuse_actors),
                trial_name_creator=self.trial_name_creator,
                trial_dirname_creator=self.trial_dirname_creator,
                chdir_to_trial_dir=self.chdir_to_trial_dir,
            ),
            run_config=RunConfig(
                name=self.name or None,
                storage_path=self.storage_path,
                failure_config=FailureConfig(max_failures=self.max_failures, fail_fast=self.fail_fast),
                checkpoint_config=_only_as_asked(self.checkpoint_config),
                sync_config=self.sync_config,
                verbose=self.verbose,
                stop=self.stop,
                callbacks=_callbacks(self.where, self.callbacks, self.loggers),
                progress_reporter=self.progress_reporter,
                log_to_file=self.log_to_file,
                if_exists="add",
            ),
        )


def translated(where: str, given: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their current names."""
    result = dict(given)
    checkpoints: dict[str, Any] = {}
    older = _without_unused_local_dir(where, given, older)
    for name, value in {**older, **{key: given[key] for key in given if key in _NOT_SUPPORTED}}.items():
        result.pop(name, None)
        if name in _INTERNAL:
            continue
        if name in _NOT_SUPPORTED:
            _refuse(where, name, value)
        elif name in ("local_dir", "upload_dir"):
            if value is not None:
                _only_one(where, name, "storage_path", result)
                result["storage_path"] = value
        elif name in _CHECKPOINTS:
            if value is not None:
                checkpoints[name] = value
        elif name in OF_A_RUN:
            result[name] = value
        else:
            known = [*given, *sorted(OLDER)]
            guess = nearest(name, known)
            raise UnknownArgumentError(
                f"{where} has no argument {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
            )
    filesystem = result.pop("storage_filesystem", None)
    if filesystem is not None:
        from trialpod.tune.location.filesystems import uri_of

        result["storage_path"] = uri_of(f"{where}(storage_filesystem=...)", result.get("storage_path"), filesystem)
    if checkpoints:
        if result.get("checkpoint_config") is not None:
            raise InvalidInputError(
                f"{where}(checkpoint_config=..., {', '.join(f'{name}=...' for name in checkpoints)}): give all of it "
                "in checkpoint_config=CheckpointConfig(...)"
            )
        result["checkpoint_config"] = _checkpoint_config(checkpoints)
    return result


def _without_unused_local_dir(where: str, given: Mapping[str, Any], older: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out `local_dir` where `upload_dir`, as an argument or of the SyncConfig, has the experiment stored."""
    sync = given.get("sync_config")
    upload_dir = older.get("upload_dir") or (sync.storage if isinstance(sync, SyncConfig) else None)
    if not upload_dir or older.get("local_dir") is None or given.get("storage_path") is not None:
        return older
    warn_of_unused_local_dir(where, older["local_dir"], upload_dir)
    return {name: value for name, value in older.items() if name != "local_dir"}


def _checkpoint_config(older: Mapping[str, Any]) -> CheckpointConfig:
    arguments = {_CHECKPOINTS[name]: value for name, value in older.items()}
    attribute = arguments.get("checkpoint_score_attribute")
    if isinstance(attribute, str) and attribute.startswith("min-"):
        arguments |= {"checkpoint_score_attribute": attribute[4:], "checkpoint_score_order": "min"}
    if arguments.get("num_to_keep") == 0:
        arguments["num_to_keep"] = None  # in Ray 0 keeps all
    return CheckpointConfig(**arguments)


def _only_as_asked(config: CheckpointConfig | None) -> CheckpointConfig | None:
    """Return a CheckpointConfig without the final checkpoint of classes, which is a default of `Tuner` alone."""
    if config is None:
        return CheckpointConfig(checkpoint_at_end=False)
    if isinstance(config, CheckpointConfig) and config.checkpoint_at_end is None:
        return replace(config, checkpoint_at_end=False)
    return config


def _refuse(where: str, name: str, value: Any) -> None:
    harmless, remedy = _NOT_SUPPORTED[name]
    if not any(_is(value, other) for other in harmless):
        raise NotSupportedError(f"{where}({name}={value!r}): {name} is not supported; {remedy}")


def _is(value: Any, other: Any) -> bool:
    if isinstance(other, type):
        return isinstance(value, other)
    return value is other or (type(value) is type(other) and bool(value == other))


def _only_one(where: str, older: str, newer: str, given: Mapping[str, Any]) -> None:
    if given.get(newer) is not None:
        raise InvalidInputError(
            f"{where}({older}=..., {newer}={given[newer]!r}): both mean the same; give {newer} only"
        )


def _space(where: str, config: Any) -> Mapping[str, Any] | None:
    if config is None or isinstance(config, Mapping):
        return config
    raise InvalidInputError(
        f"{where}(config={config!r}): must be a dict of parameter names to values and distributions"
    )


def checkpoint_path(where: str, restore: Any, argument: str = "restore") -> str | None:
    """Return the absolute path or the URI of a checkpoint to start from, None for none."""
    if restore is None:
        return None
    from trialpod.tune.checkpoints.checkpoint import Checkpoint

    path = restore.path if isinstance(restore, Checkpoint) else restore
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidInputError(f"{where}({argument}={restore!r}): must be the path of a checkpoint, or a Checkpoint")
    text = os.fspath(path)
    if "://" in text:
        return text
    absolute = os.path.abspath(os.path.expanduser(text))
    if not os.path.exists(absolute):
        raise InvalidInputError(f"{where}({argument}={text!r}): there is no checkpoint at {absolute}")
    if os.path.isdir(absolute):
        return absolute
    from trialpod.tune.trainable.saved_state import find

    folder = find(absolute)  # the file may be what `Trainable.save` returned
    if folder is None:
        raise InvalidInputError(
            f"{where}({argument}={text!r}): {absolute} is a file; give the directory of the checkpoint that it is in"
        )
    return folder


def _formats(where: str, trainable: Any, formats: Any) -> list[str]:
    if not formats:
        return []
    if isinstance(formats, str) or not isinstance(formats, Sequence):
        raise InvalidInputError(f"{where}(export_formats={formats!r}): must be a list of formats")
    if not isinstance(resolve_trainable(trainable), type):
        raise InvalidInputError(
            f"{where}(export_formats={formats!r}): only class Trainables export models (_export_model); a function "
            "writes its model into the checkpoint that it reports"
        )
    return [str(name) for name in formats]


def _callbacks(where: str, callbacks: Any, loggers: Any) -> Any:
    if not loggers:
        return callbacks
    from trialpod.tune.logger import LegacyLoggerCallback

    if isinstance(loggers, (str, bytes)) or not isinstance(loggers, Sequence):
        raise InvalidInputError(f"{where}(loggers={loggers!r}): must be a list of subclasses of tune.logger.Logger")
    return [*(callbacks or ()), LegacyLoggerCallback(list(loggers))]


def _with_resources(where: str, trainable: Any, resources: Any) -> Any:
    if resources is None or resources == {}:
        return trainable
    from trialpod.tune.placement_groups import DEFAULT_RESOURCES

    fixed, computed = resources_of(trainable)
    message = (
        f"{where}(resources_per_trial={resources!r}): the Trainable says itself what it needs (with_resources or "
        "default_resource_request); give it in one place"
    )
    if computed is None:
        if fixed != DEFAULT_RESOURCES:
            raise InvalidInputError(message)
        return with_resources(trainable, resources)
    own = _own_request(trainable)
    if own is None:
        raise InvalidInputError(message)

    def for_config(config: dict[str, Any]) -> Any:
        if own(config):
            raise InvalidInputError(message)
        return resources(config) if callable(resources) and not hasattr(resources, "bundles") else resources

    return with_resources(trainable, for_config)


def _own_request(trainable: Any) -> Any:
    """Return a class's own `default_resource_request`, which may leave it to the experiment."""
    return None if hasattr(trainable, ATTRIBUTE) else getattr(trainable, "default_resource_request", None)
