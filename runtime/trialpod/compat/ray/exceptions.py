"""Ray's exceptions, as names for ``except``: what is raised here are trialpod's and the user's own."""

from __future__ import annotations

from trialpod.errors import TrialpodError
from trialpod.tune.result import TrialDiedError, TrialFailedError

TuneError = TrialpodError
RayError = TrialpodError
RayTaskError = TrialFailedError
"""What the error of a trial is, here and in Ray. `ray.get` raises the task's own exception."""
RayActorError = TrialDiedError
"""What the error of a trial is whose process died, and of an actor that is gone."""
ActorDiedError = RayActorError


class GetTimeoutError(RayError, TimeoutError):
    """`ray.get` waited longer than its timeout."""


class TaskCancelledError(RayError):
    """A task was cancelled before it started."""


class ObjectLostError(RayError):
    """Never raised: objects live in this process."""


class WorkerCrashedError(RayError):
    """Never raised: tasks run in this process."""


class ObjectStoreFullError(RayError):
    """Never raised: there is no object store."""


class OutOfMemoryError(RayError):
    """Never raised: a process that needs too much memory is ended by the system."""


class RaySystemError(RayError):
    """Never raised."""


class RuntimeEnvSetupError(RayError):
    """Never raised: there are no runtime environments."""
