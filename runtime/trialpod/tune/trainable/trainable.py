"""`Trainable`: the class that users derive from to train in steps.

Usable on its own (``t = MyTrainable(config); t.train(); t.save(directory)``) and by the runner, which drives it in
the same way.

Invariants:

* One `train` call is one `step` and one iteration. Counters live here and travel with checkpoints.
* After `restore`, iteration and totals are those of the checkpoint; the "since restore" counters start at 0.
* `save` writes nothing but what `save_checkpoint` makes, ``_dict_checkpoint.pkl`` for a returned dict, and the
  counters in ``.metadata.json``.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from typing import Any

from trialpod.errors import CheckpointError, InvalidInputError, TrainableError
from trialpod.tune import session as _session
from trialpod.tune.checkpoint import Checkpoint

log = logging.getLogger(__name__)

DICT_CHECKPOINT_FILE = "_dict_checkpoint.pkl"
EXPORT_FORMATS = ("checkpoint", "model", "onnx", "h5")
_COUNTERS = ("training_iteration", "time_total_s", "timesteps_total", "episodes_total")
_METADATA_KEY = "trialpod"
_SLOW_SETUP_S = 10.0


class TrainingResult:
    """What `Trainable.save` returns: the checkpoint and the metrics of the result it belongs to."""

    def __init__(self, checkpoint: Checkpoint, metrics: dict[str, Any]) -> None:
        self.checkpoint = checkpoint
        self.metrics = metrics

    def __repr__(self) -> str:
        return f"TrainingResult(checkpoint={self.checkpoint!r}, metrics={self.metrics!r})"


class Trainable:
    """Base class of trainables that work in steps: override `setup`, `step`, `save_checkpoint`, `load_checkpoint`.

    Args:
        config: the trial's parameters.
        storage: accepted for compatibility, unused.
    """

    def __init__(self, config: dict[str, Any] | None = None, storage: Any = None) -> None:
        self.config: dict[str, Any] = config or {}
        self._logdir: str | None = None
        self._start_time = time.time()
        self._zero_counters()
        self._last_result: dict[str, Any] = {}
        self._read_identity()
        started = time.monotonic()
        self.setup(copy.deepcopy(self.config))
        if (taken := time.monotonic() - started) > _SLOW_SETUP_S:
            log.info(
                "setup() took %.0f s; with reuse_actors=True and a reset_config() it would run once per process",
                taken,
            )

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
        """See each complete result."""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in each format and return the paths by format."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:  # noqa: ARG003
        """Return what a trial with this config needs; None leaves it to the experiment."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:  # noqa: ARG003
        """Return a hint for when the resources are not available."""
        return ""

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
            elapsed = float(given)
        self._time_total += elapsed
        self._time_since_restore += elapsed
        result.setdefault("done", False)
        result.setdefault("training_iteration", self._iteration)
        steps = result.get("timesteps_this_iter")
        if steps is not None:
            self._timesteps_total = (self._timesteps_total or 0) + steps
            self._timesteps_since_restore += steps
        episodes = result.get("episodes_this_iter")
        if episodes is not None:
            self._episodes_total = (self._episodes_total or 0) + episodes
        for key, value in self._auto_filled(time.time(), elapsed).items():
            result.setdefault(key, value)
        self.log_result(result)
        self._last_result = result
        return self._last_result

    def save(self, checkpoint_dir: str | None = None) -> TrainingResult:
        """Write a checkpoint and return a reference to it.

        Args:
            checkpoint_dir: created if missing; None makes a new temporary directory.

        Raises:
            InvalidInputError: save_checkpoint() returned something other than a dict, None or the given directory.
        """
        if checkpoint_dir is None:
            import tempfile

            checkpoint_dir = tempfile.mkdtemp(prefix="trialpod-checkpoint-")
        os.makedirs(checkpoint_dir, exist_ok=True)
        state = self.save_checkpoint(checkpoint_dir)
        if isinstance(state, dict):
            _write_dict(state, os.path.join(checkpoint_dir, DICT_CHECKPOINT_FILE))
        elif isinstance(state, str):
            if os.path.abspath(state) != os.path.abspath(checkpoint_dir):
                raise InvalidInputError(
                    f"{type(self).__name__}.save_checkpoint() returned the path {state!r}; it has to write below the "
                    f"directory that it was given ({checkpoint_dir!r}) and return that, a dict, or None"
                )
        elif state is not None:
            raise InvalidInputError(
                f"{type(self).__name__}.save_checkpoint() returned a {type(state).__name__}; "
                "it has to return a dict, the directory that it was given, or None"
            )
        checkpoint = Checkpoint(checkpoint_dir)
        values = (self._iteration, self._time_total, self._timesteps_total, self._episodes_total)
        counters = dict(zip(_COUNTERS, values, strict=True))
        checkpoint.update_metadata({_METADATA_KEY: counters})
        return TrainingResult(checkpoint, {**self._last_result, **counters})

    def restore(self, checkpoint: str | Checkpoint | TrainingResult) -> None:
        """Go on from a checkpoint: a path, a `Checkpoint`, or what `save` returned.

        Raises:
            CheckpointError: there is no such directory.
        """
        metrics: dict[str, Any] = {}
        if isinstance(checkpoint, TrainingResult):
            metrics, checkpoint = checkpoint.metrics, checkpoint.checkpoint
        elif not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        path = checkpoint.path
        if not os.path.isdir(path):
            raise CheckpointError(f"there is no checkpoint to restore from at {path}")
        metrics = {**checkpoint.get_metadata().get(_METADATA_KEY, {}), **metrics}
        file = os.path.join(path, DICT_CHECKPOINT_FILE)
        self.load_checkpoint(_read_dict(file) if os.path.exists(file) else path)
        self._iteration = metrics.get("training_iteration") or 0
        self._time_total = metrics.get("time_total_s") or 0.0
        self._timesteps_total = metrics.get("timesteps_total")
        self._episodes_total = metrics.get("episodes_total")
        self._iterations_since_restore = 0
        self._time_since_restore = 0.0
        self._timesteps_since_restore = 0

    def reset(self, new_config: dict[str, Any], storage: Any = None) -> bool:
        """Take over another trial: calls reset_config(), and zeroes the counters if that returns True."""
        self.config = new_config
        self._logdir = None
        self._read_identity()
        if not self.reset_config(new_config):
            return False
        self._zero_counters()
        self._last_result = {}
        return True

    def stop(self) -> None:
        """Call cleanup(); the object is not used any more."""
        self.cleanup()

    def export_model(self, export_formats: str | list[str], export_dir: str | None = None) -> dict[str, str]:
        """Export the model and return the paths by format.

        Args:
            export_formats: one or more of "checkpoint", "model", "onnx", "h5".
            export_dir: default is the trial's directory.

        Raises:
            InvalidInputError: a format is unknown.
        """
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        for name in formats:
            if name not in EXPORT_FORMATS:
                raise InvalidInputError(f"unknown export format {name!r}; known are {', '.join(EXPORT_FORMATS)}")
        return self._export_model(formats, export_dir or self.logdir)

    def get_auto_filled_metrics(
        self,
        now: float | None = None,
        time_this_iter: float | None = None,
        timestamp: int | None = None,
        debug_metrics_only: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics that are added to each result.

        Args:
            now: seconds since the epoch; default is the present.
            time_this_iter: seconds that the iteration took.
            timestamp: overrides the one made from `now`.
            debug_metrics_only: only those that do not depend on results.
        """
        moment = time.time() if now is None else now
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
            "time_this_iter_s": elapsed,
            "time_total_s": self._time_total,
            "time_since_restore": self._time_since_restore,
            "iterations_since_restore": self._iterations_since_restore,
            "timestamp": second,
            "date": self._date,
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
                "experiment_tag": self._info.experiment_tag if self._info else "",
                "pid": os.getpid(),
                "hostname": socket.gethostname(),
                "node_ip": "127.0.0.1",
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
    def trial_resources(self) -> dict[str, float] | None:
        """What the trial was granted, None outside a trial."""
        return dict(self._info.resources) if self._info else None

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


def _write_dict(state: dict[str, Any], file: str) -> None:
    import pickle

    try:
        data = pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Classes and functions defined in the user's script itself.
        import cloudpickle

        data = cloudpickle.dumps(state)
    with open(file, "wb") as stream:
        stream.write(data)


def _read_dict(file: str) -> dict[str, Any]:
    import pickle

    with open(file, "rb") as stream:
        state: dict[str, Any] = pickle.load(stream)
    return state
