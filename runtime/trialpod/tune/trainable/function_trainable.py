"""A function Trainable as a class, to be used on its own: ``wrap_function(fn)(config).train()``.

In trials a function is run directly; a class made by `wrap_function` counts as its function there.

Invariants: the function runs in a thread, and only while a `train` call waits for its next result; one such object at
a time in a process, because `tune.report` reports to it. Each run of the function has a hand and a folder of its own;
the folder is removed when the run is ended, and a run that ends late touches no other's.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import CheckpointError, TrainableError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.nested import NestedNames
from trialpod.tune import session as sessions
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import as_number
from trialpod.tune.result_keys import DEFAULT_METRIC
from trialpod.tune.session import Outcome, Session, TrialInfo, TrialStopped
from trialpod.tune.trainable.function_call import is_reporter, legacy_arguments
from trialpod.tune.trainable.trainable import Trainable

RESULT_DUPLICATE = "__duplicate__"


_late: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of runs that were ended and still work


class _Hand:
    """The channel between the function's thread and `step`: one result is handed over, then the thread waits."""

    def __init__(self) -> None:
        self.preempted = False
        self.nested = NestedNames()
        self.results: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        self.resume = threading.Semaphore(0)
        self.stopping = False
        self.newest: Checkpoint | None = None
        self.folder = tempfile.mkdtemp(prefix="trialpod-function-")
        self._count = 0

    def judge(self, result: dict[str, Any]) -> bool:
        if threading.current_thread() in _late:  # `tune.report` of an earlier run
            raise TrialStopped("stopped")
        return False

    def snapshot(self, source: str, result: dict[str, Any]) -> CheckpointInfo:
        name = f"checkpoint_{self._count:06d}"
        shutil.copytree(source, os.path.join(self.folder, name))
        self.newest = Checkpoint(os.path.join(self.folder, name))
        info = CheckpointInfo(name=name, index=self._count, iteration=0, metrics={}, attempt=1)
        self._count += 1
        return info

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        self.results.put(result)
        self.resume.acquire()
        return "stopped" if self.stopping else "completed" if done else None

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Nothing has to be committed."""

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        return Checkpoint(os.path.join(self.folder, checkpoint.name))

    def time_left_s(self) -> float | None:
        return None

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class FunctionTrainable(Trainable):
    """A Trainable whose steps are the reports of a function; `wrap_function` makes subclasses of it."""

    _wrapped_function: Callable[..., Any]

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare to run the function with this config."""
        self._function_config = config
        self._thread: threading.Thread | None = None
        self._ended = False
        self._start_from: Checkpoint | None = None
        self._last_metrics: dict[str, Any] = {}
        self._hand = _Hand()

    def step(self) -> dict[str, Any]:
        """Run the function to its next report and return it; its end is the last one again, with ``done``.

        Raises:
            TrainableError: the function has ended before.
            Exception: what the function raised.
        """
        if self._thread is None:
            self._start()
        elif self._ended:
            raise TrainableError("the function has ended; it has no more results")
        else:
            self._hand.resume.release()
        got = self._hand.results.get()
        self._ended = not isinstance(got, dict)
        if isinstance(got, BaseException):
            raise got
        if got is None:
            return {**self._last_metrics, "done": True, RESULT_DUPLICATE: True}
        self._last_metrics = got
        return got

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the function's newest checkpoint.

        Raises:
            CheckpointError: it has not reported one.
        """
        newest = self._hand.newest or self._start_from
        if newest is None:
            raise CheckpointError("the function has not reported a checkpoint: tune.report(metrics, checkpoint=...)")
        newest.to_directory(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Let the function start, or start again, from a checkpoint."""
        given = Checkpoint.from_dict(checkpoint) if isinstance(checkpoint, dict) else Checkpoint(checkpoint)
        hand = _Hand()
        try:
            start_from = Checkpoint(given.to_directory(os.path.join(hand.folder, "start")))
        except BaseException:
            hand.remove()
            raise
        self._end()
        self._hand, self._start_from = hand, start_from

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the function, and run it with another config from the next step on."""
        self._end()
        self._function_config = new_config
        self._hand, self._start_from = _Hand(), None
        return True

    def cleanup(self) -> None:
        """End the function at its next report; another step would run it from its beginning."""
        self._end()
        self._hand = _Hand()
        self._hand.remove()

    def _start(self) -> None:
        info = TrialInfo(
            experiment="default", trial_name=self.trial_name, trial_id=self.trial_id, trial_dir=self.logdir
        )
        session = Session(info, self._hand, checkpoint=self._start_from)
        sessions.install(session)
        self._thread = threading.Thread(target=self._run, args=(session, self._hand), daemon=True)
        self._thread.start()

    def _run(self, session: Session, hand: _Hand) -> None:
        from trialpod.legacy.status_reporter import StatusReporter

        function = self._wrapped_function
        folder = self._start_from.path if self._start_from is not None else None
        legacy = {name: StatusReporter() if is_reporter(name) else folder for name in legacy_arguments(function)}
        last: BaseException | None = None
        try:
            output = function(self._function_config, **legacy)
            for value in output if hasattr(output, "__next__") else (output,):
                number = as_number(value)
                if isinstance(value, dict) and value:
                    session.report(value)
                elif number:
                    session.report({DEFAULT_METRIC: number})
            session.flush_offered_checkpoint()
        except (TrialStopped, StopIteration):
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that called train()
            last = error
        if sessions.current() is session:
            sessions.install(None)
        hand.results.put(last)
        if hand.stopping:
            hand.remove()

    def _end(self) -> None:
        """End the run, and remove its folder, or leave that to its thread; another hand has to follow."""
        thread, hand = self._thread, self._hand
        self._thread, self._ended = None, False
        hand.stopping = True
        if thread is not None:
            hand.resume.release()
            thread.join(float(os.environ.get("TUNE_FUNCTION_THREAD_TIMEOUT_S", "2")))
            if thread.is_alive():
                _late.add(thread)
                session = sessions.current()
                if session is not None and session.channel is hand:
                    sessions.install(None)
                return
        hand.remove()


def wrap_function(
    train_func: Callable[..., Any],
    warn: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> type[FunctionTrainable]:
    """Return a class Trainable that runs a function.

    Args:
        train_func: a function Trainable of any generation.
        warn: accepted for compatibility, unused.
        name: what to call it; None takes the function's name.

    Raises:
        InvalidInputError: it cannot be called as a Trainable.
    """
    from trialpod.tune.trainable.checks import inspect_trainable

    facts = inspect_trainable(train_func)
    body = {"_wrapped_function": staticmethod(train_func), "_name": name or facts.name}
    class_name = name or ("ImplicitFunc" if under_ray() else facts.name)
    made: type[FunctionTrainable] = type(class_name, (FunctionTrainable,), body)
    return made
