"""From an exception to what the report says: the cause, one line, and the traceback from the user's own code.

Invariants: frames of the runner around the user's code are not shown; for an error that trialpod raised on purpose,
neither are the frames below it. A traceback without any user frame is shown whole.
"""

from __future__ import annotations

import os
import sys
import traceback

import trialpod
from trialpod import variables
from trialpod.errors import SupersededError, TrialpodError, add_note
from trialpod.protocol.messages import AttemptEnd
from trialpod.tune.session import TrialStopped

_OWN = os.path.dirname(os.path.abspath(trialpod.__file__)) + os.sep
_MAX_LINE = 500
_MAX_TRACEBACK = 100_000


def end_of(error: BaseException, *, preempted: bool = False, retry: bool = True) -> AttemptEnd:
    """Return how an attempt ended whose code raised `error`.

    Args:
        error: what came out of the user's code.
        preempted: the process was asked to end; what breaks then does not count as a failure of the trial.
        retry: whether another attempt may help.
    """
    if isinstance(error, TrialStopped):
        return AttemptEnd(cause="paused" if error.cause == "exploited" else error.cause)
    if isinstance(error, SystemExit) and error.code in (None, 0):
        # Of a process that was asked to end, most often by the user's own handler of SIGTERM.
        return AttemptEnd(cause="preempted" if preempted else "completed")
    if isinstance(error, SupersededError):  # nothing that the trial has done is at fault
        return AttemptEnd(cause="preempted", error=str(error))
    cause = "preempted" if preempted else "failed"
    hint = _path_hint(error)
    if hint and hint not in getattr(error, "__notes__", ()):
        add_note(error, hint)  # for the traceback
    return AttemptEnd(cause=cause, error=one_line(error), traceback=user_traceback(error), retry=retry)  # type: ignore[arg-type]


def one_line(error: BaseException) -> str:
    """Return "ValueError: what it says (train.py:12, in train)"; the place is the innermost frame of user code."""
    if isinstance(error, SystemExit):
        text = f"SystemExit: the code exited with status {error.code!r}"
    else:
        lines = _words(error).strip().splitlines()
        name = type(error).__qualname__
        text = f"{name}: {lines[0]}" if lines else name
    if len(text) > _MAX_LINE:
        text = text[: _MAX_LINE - 3] + "..."
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    if frames:
        text += f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, in {frames[-1].name})"
    hint = _path_hint(error)
    return f"{text}; {hint}" if hint else text


def _path_hint(error: BaseException) -> str:
    """Return what to know about a relative path that was not found, and what to do; "" for other errors.

    The same for all trials, so that failures for the same reason have the same message.
    """
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, (str, bytes)):
        return ""
    name = os.fsdecode(error.filename)
    original = os.environ.get(variables.ORIG_WORKING_DIR)
    if not name or os.path.isabs(name) or "://" in name or original is None:
        return ""
    try:
        here = os.getcwd()
    except OSError:
        return ""
    if here == original:
        return ""
    places = (os.path.normpath(os.path.join(folder, name)) for folder in (original, *sys.path) if folder)
    found = next((place for place in places if os.path.exists(place)), "")
    where = f"{os.path.dirname(here)}/<trial>, not in {original}"
    return f"a trial runs in its own folder, {where}: give an absolute path" + (f", {found}" if found else "")


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - an error of the user's own kind, whose text cannot be made
        return f"(its text cannot be shown: {type(problem).__name__})"


def user_traceback(error: BaseException) -> str:
    """Return the formatted traceback, causes included, cut to what concerns the user's code."""
    shown = traceback.TracebackException.from_exception(error)
    _cut(shown, isinstance(error, TrialpodError))
    text = "".join(shown.format())
    return text if len(text) <= _MAX_TRACEBACK else "...\n" + text[-_MAX_TRACEBACK:]


def _cut(shown: traceback.TracebackException, on_purpose: bool) -> None:
    frames = list(shown.stack)
    first = next((at for at, frame in enumerate(frames) if not _is_own(frame)), None)
    if first is not None:
        frames = frames[first:]
        while on_purpose and _is_own(frames[-1]):
            frames.pop()
        shown.stack = traceback.StackSummary.from_list(frames)
    elif on_purpose:
        shown.stack = traceback.StackSummary.from_list([])
    if shown.__cause__ is not None:
        _cut(shown.__cause__, on_purpose)
    if shown.__context__ is not None and not shown.__suppress_context__:
        _cut(shown.__context__, on_purpose)


def _is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((_OWN, "<frozen importlib"))


def _is_users(frame: traceback.FrameSummary) -> bool:
    installed = f"{os.sep}site-packages{os.sep}" in frame.filename or frame.filename.startswith(
        os.path.dirname(os.__file__) + os.sep
    )
    return not installed and not frame.filename.startswith("<frozen") and not _is_own(frame)
