"""`Trainable`: the class that users derive from to train in steps.

Usable on its own (``t = MyTrainable(config); t.train(); t.save(directory)``) and by the runner, which drives it in
the same way.

Invariants:

* One `train` call is one `step` and one iteration. Counters live here and travel with checkpoints.
* After `restore`, iteration and totals are those of the checkpoint; the "since restore" counters start at 0.
* A class written with the first API's names (``_setup``, ``_train``, ``_save``, ...) is a class like any other.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trialpod import variables
from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, NoCheckpointError, TrainableError
from trialpod.storage.layout import checkpoint_name
from trialpod.tune import session as _session
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.placement_groups import TrialResources
from trialpod.tune.report_values import amount_of
from trialpod.tune.trainable import legacy_names, saved_state
from trialpod.tune.trainable.training_result import TrainingResult

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["EXPORT_FORMATS", "Trainable", "TrainingResult"]

log = logging.getLogger(__name__)

EXPORT_FORMATS = ("checkpoint", "model", "onnx", "h5")
_COUNTERS = ("training_iteration", "time_total_s", "timesteps_total", "episodes_total")
_MAGIC_KEYS = ("__trial_info__", "__stdout_file__", "__stderr_file__")
_SLOW_SETUP_S = 10.0
_RAY_RELEASE = "2.60.0"


def checked_formats(formats: Iterable[str]) -> list[str]:
    """Return names of export formats in their usual form.

    Raises:
        InvalidInputError: one is unknown.
    """
    names = [str(name).strip().lower() for name in formats]
    for name in names:
        if name not in EXPORT_FORMATS:
            raise InvalidInputError(f"unknown export format {name!r}; known are {', '.join(EXPORT_FORMATS)}")
    return names


class Trainable:
    """Base class of trainables that work in steps: override `setup`, `step`, `save_checkpoint`, `load_checkpoint`.

    Args:
        config: the trial's parameters.
        logger_creator: called with the config; returns an object whose `logdir` becomes the Trainable's, and whose
            `on_result` is called with each result.
        remote_checkpoint_dir: a URI to which `save` copies checkpoints; not needed in a trial, whose checkpoints are
            in the experiment's storage anyway.
        custom_syncer: copies checkpoints to `remote_checkpoint_dir` and back instead: an object with
            ``sync_up(local_dir, remote_dir)`` and ``sync_down(remote_dir, local_dir)``.
        sync_timeout: accepted for compatibility, unused, with a warning: a copy takes as long as it takes.
        storage: accepted for compatibility, unused.

    Raises:
        InvalidInputError: `config` is not a dict.
    """

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        logger_creator: Any = None,
        remote_checkpoint_dir: str | None = None,
        custom_syncer: Any = None,
        sync_timeout: int | None = None,
        storage: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, dict):
            raise InvalidInputError(f"{type(self).__name__}(config={config!r}): config must be a dict of parameters")
        self.config: dict[str, Any] = config or {}
        for key in _MAGIC_KEYS:
            self.config.pop(key, None)
        self.remote_checkpoint_dir = remote_checkpoint_dir
        self.custom_syncer = custom_syncer
        if sync_timeout is not None:
            log.warning("sync_timeout=%r has no effect: save() returns when all is copied", sync_timeout)
        self._logdir: str | None = None
        self._start_time = time.time()
        self._zero_counters()
        self._last_result: dict[str, Any] = {}
        self._read_identity()
        self._create_logger(self.config, logger_creator if callable(logger_creator) else None)
        started = time.monotonic()
        self.setup(copy.deepcopy(self.config))
        if (taken := time.monotonic() - started) > _SLOW_SETUP_S:
            log.info(
                "setup() took %.0f s; with reuse_actors=True and a reset_config() it would run once per process",
                taken,
            )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        legacy_names.adopt(cls, Trainable)

    def _create_logger(self, config: dict[str, Any], logger_creator: Any = None) -> None:
        self._result_logger = logger_creator(config) if logger_creator is not None else None
        self._logdir = getattr(self._result_logger, "logdir", None)

    def _zero_counters(self) -> None:
        self._iteration = 0
        self._iterations_since_restore = 0
        self._time_total = 0.0
        self._time_since_restore = 0.0
        self._timesteps_total: float | None = None
        self._timesteps_since_restore: float = 0
        self._episodes_total: float | None = None
        self._second = -1
        self._date = ""

    def _read_identity(self) -> None:
        session = _session.current()
        self._info = session.info if session is not None else None
        self._static: dict[str, Any] | None = None

    # What users override.

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare; called once, with a copy of the config."""

    def step(self) -> dict[str, Any]:
        """Train for one iteration and return its metrics."""
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Write the state into `checkpoint_dir`, or return it as a dict that can be pickled."""
        raise NotImplementedError(f"{type(self).__name__} does not define save_checkpoint()")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take the state from what `save_checkpoint` made: the dict, or a directory (its path may have changed)."""
        raise NotImplementedError(f"{type(self).__name__} does not define load_checkpoint()")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take over another trial's config without a new object; return False if that is not supported."""
        return False

    def cleanup(self) -> None:
        """Release what `setup` took; called once at the end."""

    def log_result(self, result: dict[str, Any]) -> None:
        """See each complete result; by default it is handed to the logger that `logger_creator` made."""
        if self._result_logger is not None:
            self._result_logger.on_result(result)

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in each format and return the paths by format."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """Return what a trial with this config needs; None leaves it to the experiment."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return a hint for when the resources are not available."""
        return ""

    # The first API's names, for classes that call their parent's.

    def _setup(self, config: dict[str, Any]) -> None: ...

    def _train(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def _save(self, checkpoint_dir: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define save_checkpoint()")

    def _restore(self, checkpoint: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define load_checkpoint()")

    def _stop(self) -> None: ...

    def _log_result(self, result: dict[str, Any]) -> None:
        if self._result_logger is not None:
            self._result_logger.on_result(result)

    def _open_logfiles(self, stdout_file: str | None, stderr_file: str | None) -> None:
        """Do nothing: ``RunConfig(log_to_file=...)`` writes what a trial prints."""

    def _close_logfiles(self) -> None: ...

    # What the runner and tests call.

    def train(self) -> dict[str, Any]:
        """Run one step and return its complete result.

        Raises:
            TrainableError: step() did not return a dict.
        """
        started = time.monotonic()
        result: Any = self.step()
        if not isinstance(result, dict):
            shown = repr(result)
            raise TrainableError(
                f"{type(self).__name__}.step() returned {shown[:80]} of type {type(result).__name__}; "
                "it has to return a dict of metrics"
            )
        result = dict(result)
        elapsed = time.monotonic() - started
        self._iteration += 1
        self._iterations_since_restore += 1
        given = result.get("time_this_iter_s")
        if given is not None:
            elapsed = float(amount_of(result, "time_this_iter_s"))
        self._time_total += elapsed
        self._time_since_restore += elapsed
        result.setdefault("done", False)
        result.setdefault("training_iteration", self._iteration)
        steps = result.get("timesteps_this_iter")
        if steps is not None:
            steps = amount_of(result, "timesteps_this_iter")
            self._timesteps_total = (self._timesteps_total or 0) + steps
            self._timesteps_since_restore += steps
        episodes = result.get("episodes_this_iter")
        if episodes is not None:
            self._episodes_total = (self._episodes_total or 0) + amount_of(result, "episodes_this_iter")
        for key, value in self._auto_filled(time.time(), elapsed).items():
            result.setdefault(key, value)
        self.log_result(result)
        self._last_result = result
        return self._last_result

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Run steps until a time has passed, and return their results; at least one.

        It also ends with a result that is the last one or asks for a checkpoint.

        Args:
            buffer_time_s: seconds.
            max_buffer_length: the most results.
        """
        ends = time.monotonic() + buffer_time_s
        results: list[dict[str, Any]] = []
        while True:
            result = self.train()
            results.append(result)
            if result.get("done") or result.get("should_checkpoint") or len(results) >= max_buffer_length:
                return results
            if time.monotonic() >= ends:
                return results

    def save(self, checkpoint_dir: str | None = None, prevent_upload: bool = False) -> TrainingResult:
        """Write a checkpoint and return a reference to it, which is also its path.

        Args:
            checkpoint_dir: created if missing; None makes one in `logdir`.
            prevent_upload: do not copy it to `remote_checkpoint_dir`.

        Raises:
            InvalidInputError: save_checkpoint() returned neither a dict nor None nor a path in the directory.
        """
        if checkpoint_dir is None:
            checkpoint_dir = os.path.join(self.logdir, checkpoint_name(self._iteration))
        os.makedirs(checkpoint_dir, exist_ok=True)
        values = (self._iteration, self._time_total, self._timesteps_total, self._episodes_total)
        counters = dict(zip(_COUNTERS, values, strict=True))
        path = saved_state.write(self, checkpoint_dir, counters)
        checkpoint = Checkpoint(checkpoint_dir)
        if self.remote_checkpoint_dir and not prevent_upload:
            self._upload(checkpoint_dir)
        return TrainingResult(checkpoint, {**self._last_result, **counters}, path)

    def restore(
        self,
        checkpoint_path: str | os.PathLike[str] | Checkpoint | TrainingResult,
        checkpoint_node_ip: str | None = None,
        fallback_to_latest: bool = False,
    ) -> None:
        """Continue from a checkpoint.

        Args:
            checkpoint_path: what `save` returned: a path, or a `Checkpoint`.
            checkpoint_node_ip: accepted for compatibility, unused.
            fallback_to_latest: if it is not there, take the newest checkpoint beside it.

        Raises:
            NoCheckpointError: there is no such checkpoint.
            CheckpointError: it cannot be read.
        """
        metrics: dict[str, Any] = {}
        given: str | os.PathLike[str] | Checkpoint = checkpoint_path
        if isinstance(given, TrainingResult):
            metrics, given = given.metrics, given.checkpoint
        if isinstance(given, Checkpoint):
            with given.as_directory() as folder:
                return self._restore_from(folder, metrics)
        if not isinstance(given, (str, os.PathLike)):
            raise InvalidInputError(
                f"{type(self).__name__}.restore needs the path of a checkpoint, a Checkpoint or what save() "
                f"returned, not {type(given).__name__}"
            )
        path = os.fspath(given)
        found = saved_state.find(path)
        if found is None and os.path.isfile(path):
            return self._loaded(path, {})
        if found is None and self.remote_checkpoint_dir:
            return self._restore_remote(path, metrics)
        if found is None and fallback_to_latest:
            found = saved_state.newest_beside(path)
        if found is None:
            raise NoCheckpointError(f"there is no checkpoint to restore from at {path}")
        return self._restore_from(found, metrics)

    def _restore_from(self, folder: str, metrics: dict[str, Any]) -> None:
        notes = saved_state.notes(folder)
        self._loaded(saved_state.read(folder), {**notes, **metrics})

    def _loaded(self, state: Any, metrics: dict[str, Any]) -> None:
        self.load_checkpoint(state)
        self._iteration = metrics.get("training_iteration") or 0
        self._time_total = metrics.get("time_total_s") or 0.0
        self._timesteps_total = metrics.get("timesteps_total")
        self._episodes_total = metrics.get("episodes_total")
        self._iterations_since_restore = 0
        self._time_since_restore = 0.0
        self._timesteps_since_restore = 0

    def _remote(self, path: str) -> str:
        return f"{self._remote_parent()}/{os.path.basename(path.rstrip('/'))}"

    def _remote_parent(self) -> str:
        parent = str(self.remote_checkpoint_dir).rstrip("/")
        return parent if "://" in parent else f"file://{os.path.abspath(os.path.expanduser(parent))}"

    def _storage_path(self, local_path: str) -> str:
        """Return where a path below `logdir` is in `remote_checkpoint_dir`."""
        if not self.remote_checkpoint_dir:
            raise InvalidInputError(
                f"{type(self).__name__}._storage_path({local_path!r}): there is no remote_checkpoint_dir; give it "
                f"when the object is made, {type(self).__name__}(remote_checkpoint_dir=...)"
            )
        return os.path.join(self.remote_checkpoint_dir, os.path.relpath(local_path, self.logdir))

    def _upload(self, folder: str) -> None:
        if self.custom_syncer is None:
            Checkpoint(folder).to_uri(self._remote(folder))
            return
        self.custom_syncer.sync_up(folder, self._remote(folder))
        self._wait_for_syncer()

    def _restore_remote(self, path: str, metrics: dict[str, Any]) -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="trialpod-checkpoint-", ignore_cleanup_errors=True) as folder:
            if self.custom_syncer is None:
                Checkpoint(self._remote(path)).to_directory(folder)
            else:
                self.custom_syncer.sync_down(self._remote(path), folder)
                self._wait_for_syncer()
            self._restore_from(folder, metrics)

    def _wait_for_syncer(self) -> None:
        wait = getattr(self.custom_syncer, "wait", None)
        if callable(wait):
            wait()

    def save_to_object(self) -> bytes:
        """Return the state as bytes, for `restore_from_object`."""
        return saved_state.to_object(self)

    def restore_from_object(self, obj: bytes) -> None:
        """Continue from the state that `save_to_object` returned.

        Raises:
            CheckpointError: `obj` is something else.
        """
        saved_state.from_object(self, obj)

    def delete_checkpoint(self, checkpoint_path: str | os.PathLike[str] | Checkpoint) -> None:
        """Remove a checkpoint that `save` made, and its copy in `remote_checkpoint_dir`; nothing if it is gone."""
        import shutil

        path = os.fspath(checkpoint_path.path if isinstance(checkpoint_path, Checkpoint) else checkpoint_path)
        folder = saved_state.find(path)
        if self.remote_checkpoint_dir:
            from trialpod.storage.registry import open_storage

            name = os.path.basename((folder or path).rstrip("/"))
            open_storage(self._remote_parent()).delete_tree(name)
        if folder is None:
            log.warning("there is no checkpoint to delete at %s", path)
        else:
            shutil.rmtree(folder)

    def reset(
        self,
        new_config: dict[str, Any],
        logger_creator: Any = None,
        remote_checkpoint_dir: str | None = None,
        storage: Any = None,
    ) -> bool:
        """Take over another trial: calls reset_config(), and zeroes the counters if that returns True.

        Args:
            new_config: the other trial's parameters.
            logger_creator: as for the constructor.
            remote_checkpoint_dir: as for the constructor.
            storage: accepted for compatibility, unused.
        """
        self.config = new_config
        self._read_identity()
        self._create_logger(new_config, logger_creator if callable(logger_creator) else None)
        self.remote_checkpoint_dir = remote_checkpoint_dir or self.remote_checkpoint_dir
        if not self.reset_config(new_config):
            return False
        self._zero_counters()
        self._last_result = {}
        return True

    def stop(self) -> None:
        """Call cleanup(); the object is not used any more."""
        self.cleanup()
        close = getattr(self._result_logger, "close", None)
        if close is not None:
            close()

    def export_model(self, export_formats: str | list[str], export_dir: str | None = None) -> dict[str, str]:
        """Export the model and return the paths by format.

        Args:
            export_formats: one or more names that `_export_model` knows, such as "model", "onnx", "h5".
            export_dir: default is the trial's directory.
        """
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        return self._export_model(formats, export_dir or self.logdir)

    def get_auto_filled_metrics(
        self,
        now: datetime | float | None = None,
        time_this_iter: float | None = None,
        timestamp: int | None = None,
        debug_metrics_only: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics that are added to each result.

        Args:
            now: a datetime, or seconds since the epoch; default is the present.
            time_this_iter: seconds that the iteration took.
            timestamp: overrides the one made from `now`.
            debug_metrics_only: only those that do not depend on results.
        """
        moment = time.time() if now is None else now if isinstance(now, (int, float)) else now.timestamp()
        metrics = self._auto_filled(moment, time_this_iter or 0.0)
        if timestamp is not None:
            metrics["timestamp"] = timestamp
        if debug_metrics_only:
            keep = ("trial_id", "date", "timestamp", "pid", "hostname", "node_ip", "config")
            return {key: metrics[key] for key in keep}
        return metrics

    def _auto_filled(self, now: float, elapsed: float) -> dict[str, Any]:
        second = int(now)
        if second != self._second:
            self._second = second
            self._date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))
        metrics: dict[str, Any] = {
            "date": self._date,
            "timestamp": second,
            "time_this_iter_s": elapsed,
            "time_total_s": self._time_total,
            "time_since_restore": self._time_since_restore,
            "iterations_since_restore": self._iterations_since_restore,
        }
        if self._timesteps_total is not None:
            metrics["timesteps_total"] = self._timesteps_total
            metrics["timesteps_since_restore"] = self._timesteps_since_restore
        if self._episodes_total is not None:
            metrics["episodes_total"] = self._episodes_total
        if self._static is None:
            import socket

            self._static = {
                "trial_id": self.trial_id,
                "pid": os.getpid(),
                "hostname": socket.gethostname(),
                "node_ip": os.environ.get(variables.NODE_IP) or "127.0.0.1",
            }
        metrics.update(self._static)
        metrics["config"] = self.config
        return metrics

    @property
    def logdir(self) -> str:
        """The trial's directory; outside a trial a temporary one, made when first asked for."""
        if self._logdir is None:
            if self._info is not None and self._info.trial_dir and "://" not in self._info.trial_dir:
                self._logdir = self._info.trial_dir
            else:
                import tempfile

                self._logdir = tempfile.mkdtemp(prefix="trialpod-")
        return self._logdir

    @property
    def trial_name(self) -> str:
        """The trial's name, "default" outside a trial."""
        return self._info.trial_name if self._info else "default"

    @property
    def trial_id(self) -> str:
        """The trial's id, "default" outside a trial."""
        return self._info.trial_id if self._info else "default"

    @property
    def trial_resources(self) -> TrialResources | None:
        """What the trial was granted, None outside a trial."""
        return TrialResources(self._info.resources) if self._info else None

    @property
    def iteration(self) -> int:
        """The number of finished iterations, over restores."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """The same as `iteration`."""
        return self._iteration

    def get_config(self) -> dict[str, Any]:
        """Return the config."""
        return self.config

    def get_state(self) -> dict[str, Any]:
        """Return the counters and the last result."""
        return {
            "iteration": self._iteration,
            "time_total": self._time_total,
            "timesteps_total": self._timesteps_total,
            "episodes_total": self._episodes_total,
            "last_result": self._last_result,
            **({"ray_version": _RAY_RELEASE} if under_ray() else {}),
        }

    def get_current_ip_pid(self) -> tuple[str, int]:
        """Return the machine's address, where it is known, and this process's number."""
        return os.environ.get(variables.NODE_IP) or "127.0.0.1", os.getpid()

    def is_actor(self) -> bool:
        """Return whether the object belongs to a trial."""
        return self._info is not None
