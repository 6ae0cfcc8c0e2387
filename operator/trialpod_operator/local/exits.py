"""What a process that ended without a last word means for its attempt."""

from __future__ import annotations

import signal

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.local.processes import ExitInfo

_CRASHES = {
    signal.SIGSEGV: "an invalid memory access in native code",
    signal.SIGBUS: "an invalid memory access in native code, or a full disk under a mapped file",
    signal.SIGABRT: "native code gave up; its last words are in the log",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this processor does not have",
}


def describe_exit(info: ExitInfo) -> AttemptEnd:
    """Return the end of an attempt whose process is gone, with what to look at.

    Only what happened to the process from outside, and is known to have, is no failure of the trial. The words are
    the same for all trials that ended alike, so that they can be counted together; the log is named beside them.
    """
    if info.lost:
        return AttemptEnd(cause="lost", error=str(info))
    if info.problem:
        return AttemptEnd(cause="failed", error=f"the trial's process could not be started: {info.problem}")
    if info.status >= 0:
        return AttemptEnd(
            cause="failed",
            error=f"the process ended with exit status {info.status} before the trial was over "
            "(os._exit, or a crash at its end?); its log may say more",
        )
    signum = -info.status
    if signum == signal.SIGTERM:
        return AttemptEnd(
            cause="preempted", error="it was ended by SIGTERM from outside before it could save its state"
        )
    if signum == signal.SIGKILL:
        return AttemptEnd(
            cause="failed",
            error="the process was killed (SIGKILL); most often the machine ran out of memory: "
            "run fewer trials at once or make them smaller",
        )
    name = signal.Signals(signum).name if signum in signal.valid_signals() else f"signal {signum}"
    why = _CRASHES.get(signal.Signals(signum)) if signum in signal.valid_signals() else None
    return AttemptEnd(
        cause="failed",
        error=f"the process crashed with {name}{f': {why}' if why else ''}",
    )
