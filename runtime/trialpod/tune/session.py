"""What user code may call while a trial runs: `report`, `get_checkpoint`, `get_context`, in the forms of every age.

The runner installs one session per attempt. `report` completes and encodes the metrics at once and hands them to a
channel; it waits only at a horizon.

Invariants:

* A report that raises because of its arguments has not counted: neither iteration nor times have moved.
* When the trial is over, `report` raises `TrialStopped`, and continues raising it if user code swallows it.
* A forked child of the trial never reports.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, NotSupportedError, TrialpodError, WrongTypeError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.nested import NestedNames
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.placement_groups import TrialResources
from trialpod.tune.report_values import amount_of, encode, flatten, metrics_of

if TYPE_CHECKING:
    from trialpod.tune.checkpoints.written_folders import WrittenFolders

Outcome = Literal["completed", "stopped", "paused", "exploited", "preempted"]


class TrialStopped(BaseException):
    """The trial is over for this process; raised inside `report` so that ``finally`` blocks run."""

    def __init__(self, cause: Outcome) -> None:
        super().__init__(cause)
        self.cause: Outcome = cause


class Channel(Protocol):
    """Where a session's results go: the attempt."""

    preempted: bool
    nested: NestedNames  # takes the names of the dicts in results

    def judge(self, result: dict[str, Any]) -> bool:
        """Whether a flat result meets a stop rule."""

    def snapshot(self, source: str, result: dict[str, Any]) -> CheckpointInfo:
        """Copy the directory `source` as the next checkpoint, and put its name into `result`."""

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        """Send one result, then commit its snapshot; returns how the trial is over, if it is."""

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Commit a snapshot whose result has been sent before."""

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        """Return the checkpoint of a snapshot, to be read later."""

    def time_left_s(self) -> float | None:
        """Seconds until the process is killed, None while it is not preempted."""


class TrialInfo:
    """Who the trial is; what `TuneContext` and class Trainables show."""

    __slots__ = (
        "created_at",
        "experiment",
        "experiment_tag",
        "rank",
        "resources",
        "trial_dir",
        "trial_id",
        "trial_name",
        "world_size",
    )

    def __init__(
        self,
        *,
        experiment: str,
        trial_name: str,
        trial_id: str,
        experiment_tag: str = "",
        trial_dir: str = "",
        resources: dict[str, float] | None = None,
        rank: int = 0,
        world_size: int = 1,
        created_at: float = 0.0,
    ) -> None:
        self.experiment = experiment
        self.trial_name = trial_name
        self.trial_id = trial_id
        self.experiment_tag = experiment_tag
        self.trial_dir = trial_dir
        self.resources = resources or {}
        self.rank = rank
        self.world_size = world_size
        self.created_at = created_at  # seconds since the epoch; 0 = not known


_REPLACED = ("trial_id", "pid", "hostname", "node_ip", "config", "date", "experiment_tag")


def _warn_of_replaced(metrics: dict[str, Any]) -> None:
    """Say which of a function's first metrics are replaced by facts of the trial."""
    if found := [name for name in _REPLACED if name in metrics]:
        import logging

        logging.getLogger(__name__).warning(
            "tune.report: trialpod sets %s itself; use other names for your metrics", ", ".join(found)
        )


class Session:
    """The state behind `report` for one attempt.

    Args:
        info: who the trial is.
        channel: where results go.
        reports: False for class Trainables, whose results are what step() returns.
        checkpoint: the one to start from.
        restored: the metrics of that checkpoint's result; counters resume from there.
        clock: monotonic seconds.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        info: TrialInfo,
        channel: Channel,
        *,
        reports: bool = True,
        checkpoint: Checkpoint | None = None,
        restored: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        restored = restored or {}
        self.info = info
        self.channel = channel
        self.reports = reports
        self.checkpoint = checkpoint
        self.forked = False
        self.over: Outcome | None = None
        self._offered: str | None = None
        self._removes = True
        self._folders: WrittenFolders | None = None
        self._save_at_end: Callable[[str], Any] | None = None
        self._last: dict[str, Any] = {}
        self._clock = clock
        self._wall = wall
        self._iteration: int = restored.get("training_iteration") or 0
        self._iterations_since_restore = 0
        self._time_total: float = restored.get("time_total_s") or 0.0
        self._time_since_restore = 0.0
        self._timesteps_total: float | None = restored.get("timesteps_total")
        self._timesteps_since_restore: float = 0
        self._episodes_total: float | None = restored.get("episodes_total")
        self._reported_at = clock()
        self._second = -1
        self._date = ""
        self._as_ray = under_ray()

    @property
    def iteration(self) -> int:
        """The iteration of the last result."""
        return self._iteration

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Complete, encode and send one result.

        Raises:
            InvalidInputError: the metrics cannot be reported.
            TrialStopped: the trial is over.
        """
        if self.over is not None:
            raise TrialStopped(self.over)
        if self.forked:
            raise TrialpodError(
                "tune.report was called in a child process forked by the trial; only the trial's own process "
                "reports (hand the metrics back to it, for example through a queue)"
            )
        if not isinstance(metrics, dict):
            raise WrongTypeError(
                f"tune.report needs a dict of metrics, as in tune.report({{'loss': 0.1}}); "
                f"it got {type(metrics).__name__}"
            )
        now = self._clock()
        result = flatten(metrics, self.channel.nested)
        iteration = self._iteration + 1
        since_restore = self._iterations_since_restore + 1
        elapsed = now - self._reported_at
        if "time_this_iter_s" in result:
            elapsed = float(amount_of(result, "time_this_iter_s"))
        total = self._time_total + elapsed
        time_since_restore = self._time_since_restore + elapsed
        second = int(self._wall())
        if second != self._second:
            if self._second < 0:
                _warn_of_replaced(metrics)
            self._second = second
            self._date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))
        # In Ray's order, which is that of the columns in progress.csv.
        if self._as_ray:
            result["timestamp"] = second
        else:
            result.setdefault("timestamp", second)
        result["checkpoint_dir_name"] = None
        result.setdefault("done", False)
        result.setdefault("training_iteration", iteration)
        result["date"] = self._date
        result.setdefault("time_this_iter_s", elapsed)
        result["time_total_s"] = total
        result["time_since_restore"] = time_since_restore
        result["iterations_since_restore"] = since_restore
        steps, episodes = result.get("timesteps_this_iter"), result.get("episodes_this_iter")
        timesteps_total, timesteps_since_restore = self._timesteps_total, self._timesteps_since_restore
        episodes_total = self._episodes_total
        if steps is not None:
            steps = amount_of(result, "timesteps_this_iter")
            timesteps_total = (timesteps_total or 0) + steps
            timesteps_since_restore += steps
        if timesteps_total is not None:
            result.setdefault("timesteps_total", timesteps_total)
            result["timesteps_since_restore"] = timesteps_since_restore
        if episodes is not None:
            episodes_total = (episodes_total or 0) + amount_of(result, "episodes_this_iter")
        if episodes_total is not None:
            result.setdefault("episodes_total", episodes_total)
        done = self.channel.judge(result) or bool(result["done"])
        result["done"] = done
        info = None
        if checkpoint is not None or self._offered is not None:
            result["should_checkpoint"] = True
        if checkpoint is None and self._offered is not None:
            info = self._snapshot_offered(result)
        elif checkpoint is not None:
            info = self._snapshot(checkpoint, result)
            self._drop_offered()  # it is older
        if info is not None:
            self._save_at_end = None
        outcome = self.channel.send(result, info, done)
        self._last = result
        self._iteration = iteration
        self._iterations_since_restore = since_restore
        self._time_total = total
        self._time_since_restore = time_since_restore
        self._timesteps_total, self._timesteps_since_restore = timesteps_total, timesteps_since_restore
        self._episodes_total = episodes_total
        # The time spent waiting or copying is not the next iteration's.
        self._reported_at = self._clock()
        if outcome is not None:
            self.over = outcome
            raise TrialStopped(outcome)

    def offer(self, folder: str, *, remove: bool = True) -> None:
        """Take a folder as the checkpoint of the next report.

        Args:
            folder: of `make_folder`, or another one.
            remove: whether another one is removed once it has been copied.
        """
        if self._offered is not None and self._offered != folder:
            self._drop_offered()
        self._offered, self._removes = folder, remove

    def make_folder(self, step: int) -> str:
        """Return an empty folder ``.../{trial's directory}/checkpoint_{step}``, for `offer`."""
        if self._folders is None:
            from trialpod.tune.checkpoints.written_folders import WrittenFolders

            self._folders = WrittenFolders(self.info.trial_dir, self.info.trial_name)
        if self._offered == self._folders.path(step):
            self._offered = None
        return self._folders.make(step)

    def save_at_end(self, save: Callable[[str], Any]) -> None:
        """Have `save` write a checkpoint into a folder at the end, unless one is reported before."""
        self._save_at_end = save

    def flush_offered_checkpoint(self) -> None:
        """Keep what was offered after the last checkpoint, with the metrics of the last report."""
        if self.over is not None or self.forked:
            return
        result = dict(self._last) or {"training_iteration": self._iteration}
        if self._offered is not None:
            self.channel.announce(self._snapshot_offered(result))
        elif self._save_at_end is not None:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="trialpod-checkpoint_") as folder:
                self._save_at_end(folder)
                self.channel.announce(self._snapshot(Checkpoint(folder), result))
            self._save_at_end = None

    def _snapshot_offered(self, result: dict[str, Any]) -> CheckpointInfo:
        folder = self._offered
        assert folder is not None
        info = self._snapshot(Checkpoint(folder), result)
        if self._folders is not None and self._folders.has(folder):
            self._folders.keep(folder, info.name)
            self._offered = None
        else:
            self._drop_offered()
        return info

    def close(self) -> None:
        """Remove the folders of `make_folder`."""
        if self._folders is not None and not self.forked:
            self._folders.close()
            self._folders = None

    def _drop_offered(self) -> None:
        import shutil

        if self._offered is not None and self._removes:
            shutil.rmtree(self._offered, ignore_errors=True)
        self._offered = None

    def _snapshot(self, checkpoint: Checkpoint, result: dict[str, Any]) -> CheckpointInfo:
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInputError(
                f"report(checkpoint=...) needs a Checkpoint, as in Checkpoint.from_directory(path); "
                f"it got {type(checkpoint).__name__}"
            )
        encode(result)  # refuses bad metrics before anything is copied
        if self.info.rank:
            # Nothing of it is kept; and where only rank 0 writes the folder, there is none here.
            info = self.channel.snapshot("", result)
        else:
            with checkpoint.as_directory() as path:
                info = self.channel.snapshot(path, result)
        self.checkpoint = self.channel.reported(info)
        return info


_current: Session | None = None
_fork_hook = False


def install(session: Session | None) -> None:
    """Make `session` the one that `report` and the rest use in this process; None removes it."""
    global _current, _fork_hook
    if _current is not None and _current is not session:
        _current.close()
    _current = session
    if not _fork_hook:
        os.register_at_fork(after_in_child=_after_fork)
        _fork_hook = True


def _after_fork() -> None:
    if _current is not None:
        _current.forked = True


def offered_folder() -> str | None:
    """Return the folder that the next report will take as its checkpoint, None if there is none."""
    return _current._offered if _current is not None else None  # noqa: SLF001 - of this module


def save_at_end(save: Callable[[str], Any]) -> None:
    """Have `save` write a checkpoint into a folder when the user's function has ended, unless one is reported before.

    Outside a trial and inside a class Trainable it does nothing.
    """
    if _current is not None and _current.reports:
        _current.save_at_end(save)


def latest_result() -> dict[str, Any]:
    """Return the latest result of the running trial, empty before the first and outside a trial."""
    return dict(_current._last) if _current is not None else {}  # noqa: SLF001


def current() -> Session | None:
    """Return the installed session."""
    return _current


class RemovedError(NotSupportedError, DeprecationWarning):
    """Ray has removed it, and raises a DeprecationWarning."""


class TuneContext:
    """Who the running trial is. Outside a trial, every name is None."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session

    def get_experiment_name(self) -> str | None:
        """Return the experiment's name."""
        return self._session.info.experiment if self._session else None

    def get_trial_name(self) -> str | None:
        """Return the trial's name."""
        return self._session.info.trial_name if self._session else None

    def get_trial_id(self) -> str | None:
        """Return the trial's id."""
        return self._session.info.trial_id if self._session else None

    def get_trial_resources(self) -> TrialResources | None:
        """Return what the trial was granted, such as ``{"cpu": 1.0, "nvidia.com/gpu": 1.0}``.

        It is a dict that also answers as Ray's `PlacementGroupFactory` and `Resources` do.
        """
        return TrialResources(self._session.info.resources) if self._session else None

    def get_trial_dir(self) -> str | None:
        """Return the path or URI of the trial's directory."""
        return self._session.info.trial_dir if self._session else None

    def get_metadata(self) -> dict[str, Any]:
        """Raise: user metadata belongs to Ray Train.

        Raises:
            NotSupportedError: always.
        """
        raise RemovedError("get_context().get_metadata() belongs to Ray Train; put what you need into the config")

    def get_storage(self) -> Any:
        """Return the paths of the trial and its experiment; None outside a trial. Only `report` stores files."""
        from trialpod.tune.location.storage_context import StorageContext

        return StorageContext(self._session.info.trial_dir) if self._session else None

    def get_world_size(self) -> int:
        """Return how many processes run the trial together: 1, or in a cluster 1 + ``spec.workers.replicas``."""
        return self._session.info.world_size if self._session else 1

    def get_world_rank(self) -> int:
        """Return which of them this is; only what rank 0 reports counts."""
        return self._session.info.rank if self._session else 0

    def get_local_rank(self) -> int:
        """Return 0: the processes of a trial have a pod each."""
        return 0

    def get_local_world_size(self) -> int:
        """Return 1: the processes of a trial have a pod each."""
        return 1

    def get_node_rank(self) -> int:
        """Return the world rank: the processes of a trial have a pod each."""
        return self.get_world_rank()

    @property
    def preempted(self) -> bool:
        """Whether the process was asked to end (preemption); the next report with a checkpoint will be the last."""
        return self._session is not None and self._session.channel.preempted

    @property
    def time_left_s(self) -> float | None:
        """Seconds until the process is killed; None while it is not preempted."""
        return self._session.channel.time_left_s() if self._session else None


def report(metrics: Any = None, /, *, checkpoint: Checkpoint | None = None, **named: Any) -> None:
    """Report one result of the running trial; the iteration count goes up by one.

    Returns at once, except where the scheduler has to decide first. A scheduler's or user's stop unwinds the calling
    function from here, with its ``finally`` blocks. Outside a trial, and inside a class Trainable, it only warns.

    The forms of older APIs are the same: ``report(loss=0.1)``, ``report(0.1)`` (the metric ``_metric``) and
    ``report(metrics={...})``.

    Args:
        metrics: names and values; nested dicts are flattened to "outer/inner". Or one number.
        checkpoint: a directory to keep with this result. It is copied before this call returns, and stored while
            training continues.
        **named: metrics by name, instead of a dict.

    Raises:
        InvalidInputError: the metrics cannot be reported; the message names the key.
        CheckpointError: the checkpoint's directory is missing, or an earlier checkpoint cannot be stored.
        StorageError: the disk is full, or an earlier checkpoint cannot be stored.
        TrialStopped: the trial is over; a BaseException, so that ``except Exception`` does not catch it.
    """
    session = _current
    if session is None:
        warnings.warn(
            "tune.report was called outside a trial; it does nothing here (run the function with Tuner.fit() or "
            "`trialpod run`)",
            stacklevel=2,
        )
        return
    if not session.reports:
        warnings.warn(
            "tune.report does nothing in a class Trainable; return the metrics from step() instead", stacklevel=2
        )
        return
    if metrics.__class__ is not dict or named:
        metrics = metrics_of(metrics, named)
    session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to resume from: the trial's newest, or the one that the scheduler planted; or None."""
    if _current is None:
        warnings.warn("tune.get_checkpoint was called outside a trial; there is no checkpoint", stacklevel=2)
        return None
    return _current.checkpoint


def get_context() -> TuneContext:
    """Return who the running trial is, and whether it is being preempted."""
    return TuneContext(_current)


def get_experiment_name() -> str | None:
    """Return the experiment's name, None outside a trial."""
    return get_context().get_experiment_name()


def get_trial_name() -> str | None:
    """Return the trial's name, None outside a trial."""
    return get_context().get_trial_name()


def get_trial_id() -> str | None:
    """Return the trial's id, None outside a trial."""
    return get_context().get_trial_id()


def get_trial_dir() -> str | None:
    """Return the path or URI of the trial's directory, None outside a trial."""
    return get_context().get_trial_dir()


def get_trial_resources() -> TrialResources | None:
    """Return what the trial was granted, None outside a trial."""
    return get_context().get_trial_resources()


def is_session_enabled() -> bool:
    """Return whether a trial runs in this process."""
    return _current is not None


def get_world_size() -> int:
    """Return how many processes run the trial together."""
    return get_context().get_world_size()


def get_world_rank() -> int:
    """Return which of them this is."""
    return get_context().get_world_rank()


def get_local_rank() -> int:
    """Return 0: the processes of a trial have a pod each."""
    return 0


def get_local_world_size() -> int:
    """Return 1: the processes of a trial have a pod each."""
    return 1


def get_node_rank() -> int:
    """Return the world rank: the processes of a trial have a pod each."""
    return get_world_rank()
