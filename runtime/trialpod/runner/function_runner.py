"""Runs a function Trainable: ``fn(config)`` with `tune.report`, a generator, or just a return value.

The older ``fn(config, checkpoint_dir=None)`` and ``fn(config, reporter)`` run as well.

Invariants: every yielded value and a returned dict or number are reports like any other; once the trial is over,
nothing that the function still does changes how it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Any

from trialpod.errors import TrainableError, WrongReturnError
from trialpod.legacy.run_options import restore_path
from trialpod.runner.attempt import Attempt
from trialpod.tune import session as sessions
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import as_number
from trialpod.tune.result_keys import DEFAULT_METRIC
from trialpod.tune.session import Outcome, Session, TrialStopped
from trialpod.tune.trainable.function_call import SignatureError, check_call, is_reporter, legacy_arguments

log = logging.getLogger(__name__)

_COROUTINE = 0x80  # inspect.CO_COROUTINE


def check_signature(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with the config alone.

    Raises:
        TrainableError: with what it takes and what it should take.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, FunctionType) and function.__code__.co_flags & _COROUTINE:
        raise TrainableError(f"{name} is a coroutine function; wrap its work in a function with asyncio.run(...)")
    try:
        check_call(function)
    except SignatureError as error:
        raise TrainableError(
            f"{name}({error.arguments}) cannot be tuned: the function is called with one positional argument, the "
            "config; bind others with functools.partial or tune.with_parameters (a second argument must be named "
            "`reporter` or `checkpoint_dir`)"
        ) from None


def run_function(function: Callable[..., Any], attempt: Attempt, config: dict[str, Any]) -> Outcome:
    """Run the function to its end and return how the trial is over for this process."""
    found = attempt.restore()
    if found is not None and attempt.is_trained(found[0]):
        return "completed"
    given = restore_path(function) if found is None else None
    session = Session(
        attempt.info,
        attempt,
        checkpoint=Checkpoint(found[1]) if found else Checkpoint(given) if given else None,
        restored=found[0].metrics if found else None,
    )
    sessions.install(session)
    try:
        legacy = legacy_arguments(function)
        output = function(config, **_values(legacy, session)) if legacy else function(config)
        if isinstance(output, GeneratorType):
            _drive(output, session)
        else:
            _report_output(output, session, "returned")
        session.flush_offered_checkpoint()
    except TrialStopped as stopped:
        return stopped.cause
    except StopIteration:
        if session.over is None or session.forked:
            raise
    except BaseException as error:
        is_users = isinstance(error, (Exception, SystemExit)) or _is_group(error)
        if session.over is None or session.forked or not is_users:
            raise
        if not _only_stops(error):
            log.warning("the function raised after its trial was over (%s)", session.over, exc_info=True)
    finally:
        sessions.install(None)
    return session.over or "completed"


def _is_group(error: BaseException) -> bool:
    """Return whether an error is what a task group of asyncio, anyio or trio makes of the errors of its tasks."""
    return isinstance(getattr(error, "exceptions", None), tuple)  # Python 3.10 has no BaseExceptionGroup


def _only_stops(error: BaseException) -> bool:
    if _is_group(error):
        return all(map(_only_stops, error.exceptions))  # type: ignore[attr-defined]
    return isinstance(error, TrialStopped)


def _values(names: dict[str, None], session: Session) -> dict[str, Any]:
    from trialpod.legacy.status_reporter import StatusReporter

    folder = session.checkpoint.path if session.checkpoint is not None else None
    return {name: StatusReporter() if is_reporter(name) else folder for name in names}


def _drive(outputs: Iterator[Any] | GeneratorType[Any, Any, Any], session: Session) -> None:
    try:
        for output in outputs:
            _report_output(output, session, "yielded")
    finally:
        if isinstance(outputs, GeneratorType):
            outputs.close()


def _report_output(output: Any, session: Session, verb: str) -> None:
    if output is None or session.over is not None:
        return
    if isinstance(output, dict):
        if output:
            session.report(output)
        return
    number = as_number(output)
    if number is None:
        raise WrongReturnError(
            f"the function {verb} {repr(output)[:80]} of type {type(output).__name__}; "
            f"it may {verb.removesuffix('ed')} a dict of metrics, one number, or nothing"
        )
    # A plain 0 counts as nothing, as an exit status would.
    if number:
        session.report({DEFAULT_METRIC: number})
