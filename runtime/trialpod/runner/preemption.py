"""SIGTERM: the process has to end; use the grace period, and report it in time.

The signal is seen by a thread through the interpreter's wake-up descriptor, because user code that sits in one long
native call never gives the main thread a chance to run a Python handler.

Invariants:

* An attempt that finishes no step, and reports no checkpoint, in time still says "preempted", a margin before it is
  killed.
* A process without an attempt just exits.
* Children forked by user code get the default behaviour back; a SIGTERM to one of them is not the trial's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from types import FrameType

from trialpod.protocol.attempt_link import Superseded
from trialpod.protocol.client import RefusedError
from trialpod.protocol.messages import AttemptEnd
from trialpod.runner.attempt import Attempt
from trialpod.runner.streams import flush

log = logging.getLogger(__name__)


def margin_s(grace_s: float) -> float:
    """Return how many seconds before the kill an attempt that has finished no step gives up."""
    return min(2.0, 0.2 * grace_s)


class PreemptionWatch:
    """Turns SIGTERM into `Attempt.preempt`. Make one per process, in the main thread.

    Args:
        idle_status: the exit status for a SIGTERM while no attempt runs; None dies of the signal, so that a server
            that has just given this process an attempt sees that it was taken away.
    """

    def __init__(self, idle_status: int | None = None) -> None:
        self._idle_status = idle_status
        self._attempt: Attempt | None = None
        self.is_terminated = False
        """Whether the signal has come, also after all that the attempt had to say."""
        self._pid = os.getpid()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Take over SIGTERM, and do nothing at SIGINT: a terminal's Ctrl-C is the parent's to handle."""
        # Not SIG_IGN, which would stay in programs that the trial starts.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._after_fork)
        threading.Thread(target=self._watch, name="trialpod-preemption", daemon=True).start()

    def begin(self, attempt: Attempt) -> None:
        """Preempt this attempt if the signal comes."""
        self._attempt = attempt

    def end(self) -> None:
        """No attempt is running."""
        self._attempt = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_terminated = True
        if self._attempt is not None:
            self._attempt.preempt()
        elif self._idle_status is not None:
            raise SystemExit(self._idle_status)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._read, 64):
                attempt = self._attempt
                if number == signal.SIGTERM and attempt is not None:
                    attempt.preempt()
                    self._enforce(attempt)

    def _enforce(self, attempt: Attempt) -> None:
        grace_s = attempt.assignment.grace_s
        left = attempt.time_left_s() or 0.0
        if attempt.ending.wait(max(0.0, left - margin_s(grace_s))):
            return
        log.warning("no step or report with a checkpoint came within the grace period of %g s; giving up", grace_s)
        status = 1
        with contextlib.suppress(Superseded, RefusedError):
            attempt.link.finish(
                AttemptEnd(
                    cause="preempted", error=f"no step or report came within the grace period of {grace_s:g} s"
                )
            )
            status = 0
        leave(status)

    def _after_fork(self) -> None:
        # The descriptor is shared with the trial: a signal to the child must not be written to it.
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(status: int) -> None:
    """End this process now, without running any more of the user's code."""
    flush()
    os._exit(status)
