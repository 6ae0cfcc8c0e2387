"""What the operator does for a `DurableExperiment`: passes its actions on, and measures it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from trialpod_operator.cluster.metrics.instruments import STORAGE_ERRORS, ExperimentMeter
from trialpod_operator.engine.actions import Action
from trialpod_operator.engine.events import AnyEvent, CheckpointsChanged, ResultsReceived, RetryRequested
from trialpod_operator.experiment.durable import Shell
from trialpod_operator.experiment.replica.replica import ReplicaStatus

logger = logging.getLogger(__name__)


class ClusterShell(Shell):
    """The shell of one experiment in a cluster.

    Attributes:
        meter: counts and times what happens to the experiment.

    Args:
        perform: carries out actions; called once they are committed.
        broken: called once when the experiment cannot continue as it is open now.
        changed: called when something changed that a reconcile pass looks at.
        progressed: called when only what a status shows has changed.
        retry: returns what is entered around the application of a request to retry.
    """

    def __init__(
        self,
        perform: Callable[[Action], None],
        broken: Callable[[BaseException], None],
        changed: Callable[[], None],
        progressed: Callable[[], None],
        retry: Callable[[RetryRequested], AbstractContextManager[None]] = lambda _event: nullcontext(),
    ) -> None:
        self.meter = ExperimentMeter()
        self._perform = perform
        self._broken = broken
        self._changed = changed
        self._progressed = progressed
        self._retry = retry

    def step(self, event: AnyEvent) -> AbstractContextManager[None]:
        """Return what is entered around the application of an event."""
        return self._retry(event) if isinstance(event, RetryRequested) else nullcontext()

    def perform(self, action: Action) -> None:
        """Carry out an action."""
        self._perform(action)

    def applied(self, event: AnyEvent, position: int, *, blocks: bool) -> None:
        """Measure an event."""
        self.meter.applied(event, position, waits=blocks)
        if isinstance(event, ResultsReceived | CheckpointsChanged):
            self._progressed()
        else:
            self._changed()

    def committed(self, position: int) -> None:
        """Measure a commit."""
        self.meter.committed(position)

    def replica_changed(self, status: ReplicaStatus) -> None:
        """Have a pass look at what the storage says, for the keys and for the status."""
        logger.warning("%s", status.message)
        self._changed()

    def replica_failed(self, times: int) -> None:
        """Count failures of the storage."""
        STORAGE_ERRORS.inc(times)

    def broken(self, error: BaseException) -> None:
        """Have the experiment reopened."""
        self._broken(error)
