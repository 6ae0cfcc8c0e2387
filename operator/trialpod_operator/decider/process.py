"""The main program of a decider: polls for events, decides, and sends the choices.

It has two connections: one for long polls, which the server answers when there is something to decide; one for what
comes meanwhile: suggestions, and the news that the user's code is still busy.

Invariants:

* All of the user's deciding code runs in this process, in the user's image. It has no permissions at the API server
  and no keys.
* A process serves one session. When another session has begun or a restart is requested, it re-executes itself
  (`Outcome.RESTART`), so the user's code keeps no state of decisions that were never journaled; otherwise it exits.
* A decision has a time limit. When it is exceeded, the process reports the line that runs, and ends. While recorded
  decisions are replayed, the searcher is called in the main thread, and each of its calls has the limit of a
  suggestion.
"""

from __future__ import annotations

import enum
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO

from trialpod import variables
from trialpod.errors import TrainableError, TrialpodError
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import TransportError
from trialpod.protocol.messages import PROTOCOL_VERSION
from trialpod.tune.shipping.fetched_values import FetchedValues
from trialpod_operator.decider.code import load_plan, restore_generators
from trialpod_operator.decider.deciding import DecidingEngine
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.experiment.decisions.messages import (
    DeciderStart,
    DecisionAnswer,
    DecisionRequest,
    decode_answer,
    encode,
    read_lessons,
)

CALL_TIMEOUT_S = 120.0
BUSY_INTERVAL_S = 5.0
LOAD_TIMEOUT_S = 300.0
"""Maximum time to load the code, its imports included."""
SNAPSHOT_INTERVAL_S = 30.0
"""Run time of the user's code after which a snapshot is sent, so that a new decider has less to repeat."""

SNAPSHOT_WAIT_S = 0.5
"""Maximum time that choices wait for a snapshot, while the search algorithm learns from the events before them."""

SNAPSHOT_RETRY_S = 10.0
"""Minimum time between a snapshot that could not be made, or did not come in time, and the next such try."""

MAX_SNAPSHOT_BYTES = 24 * 1024 * 1024
"""A larger one is not sent, as the report service would not take it: the journal is kept as it is."""

MAX_SENT_TRACEBACK = 4000
"""Maximum length of a traceback in characters; the end is sent."""

_CONFLICT = 409


class Outcome(enum.Enum):
    """How a session ended."""

    ENDED = 0
    """The experiment needs no decider any more."""
    FAILED = 1
    """The user's code cannot continue; the operator knows why."""
    RESTART = 2
    """Another session has begun, or a restart is requested: the process re-executes itself."""


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run a decider; return the exit status."""
    missing = [name for name in (variables.ADDRESS, variables.EXPERIMENT) if not environ.get(name)]
    if missing:
        sys.stderr.write(f"trialpod: {', '.join(missing)} not set; the operator sets them in a decider's pod\n")
        return 2
    try:
        outcome = Decider(
            environ[variables.ADDRESS],
            environ[variables.EXPERIMENT],
            token_file=environ.get(variables.TOKEN_FILE) or None,
            ca_file=environ.get(variables.CA_FILE) or None,
        ).run()
    except TrialpodError as error:
        sys.stderr.write(f"trialpod: {error}\n")
        return 1
    if outcome is Outcome.RESTART:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "trialpod_operator.decider"])
    return int(outcome.value)


class Decider:
    """One session of a decider.

    Args:
        address: of the report service.
        experiment: "namespace/name" in a cluster.
        token_file: see `ReportClient`.
        ca_file: the same.
        leave: ends the process at once, whatever its threads are doing.
    """

    def __init__(
        self,
        address: str,
        experiment: str,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        def client() -> ReportClient:
            return ReportClient(address, experiment, token_file=token_file, ca_file=ca_file)

        self._calls, self._side_client = client(), client()
        self._leave = leave
        self._session = 0
        self._suggestions = 0
        self._outbox: queue.Queue[SuggestionReady] = queue.Queue()
        self._main = threading.get_ident()
        self._since: float | None = None  # when the decision that is being made was begun
        self._stopped = threading.Event()
        self._stale = threading.Event()
        self._deciding: DecidingEngine | None = None
        self._replaying = True  # until it has all of the journal
        self._busy_s = 0.0  # of the user's code, since the last snapshot
        self._no_snapshot_before = 0.0  # of the monotonic clock
        self._no_wait_before = 0.0  # likewise: choices wait for no snapshot

    def run(self) -> Outcome:
        """Decide until the session is over."""
        try:
            return self._run()
        except RefusedError as error:
            if error.status == _CONFLICT:
                return Outcome.RESTART
            raise
        finally:
            self._stopped.set()

    def _run(self) -> Outcome:
        answer = self._call(DecisionRequest(version=PROTOCOL_VERSION, release=_release()))
        if answer.start is None:
            return Outcome.ENDED
        start, self._session = answer.start, answer.session
        try:
            for target in (lambda: self._watch(start), self._send_suggestions):
                threading.Thread(target=target, daemon=True).start()
            self._begin()
            deciding = self._deciding = self._load(start)
            while answer.loading:
                for item in answer.items:
                    self._begin()
                    deciding.replay(item.record)
                request = DecisionRequest(
                    session=self._session,
                    position=deciding.position,
                    view=deciding.view(),
                    horizons=deciding.horizons(of_all=True),
                )
                self._since = None
                answer = self._call(request)
            self._replaying = False
            deciding.release()
            return self._decide(deciding, answer)
        except (RefusedError, TransportError):
            raise
        except Exception as error:  # noqa: BLE001 - the operator learns of it, and shows it
            text = traceback.format_exc()
            sys.stderr.write(text)
            message = str(error) if isinstance(error, TrialpodError) else f"{type(error).__name__}: {error}"
            self._call(DecisionRequest(session=self._session, problem=message, traceback=text[-MAX_SENT_TRACEBACK:]))
            return Outcome.FAILED

    def _load(self, start: DeciderStart) -> DecidingEngine:
        restore_generators(start.code, start.seed)
        values = FetchedValues(self._fetch)
        values.use()
        plan = load_plan(start.code, start.seed, start.name, values, read_lessons(start))
        return DecidingEngine(
            plan, self._outbox.put, start.position, start.snapshot, on_error=traceback.print_exception
        )

    def _fetch(self, name: str, file: IO[bytes]) -> None:
        continues = True
        while continues:
            answer = _call(
                self._side_client, DecisionRequest(session=self._session, value=name, value_start=file.tell())
            )
            if answer.value_problem:
                raise TrainableError(answer.value_problem)
            file.write(answer.value)
            continues = answer.value_continues

    def _decide(self, deciding: DecidingEngine, answer: DecisionAnswer) -> Outcome:
        while not answer.ended:
            if self._stale.is_set():
                return Outcome.RESTART
            began = time.monotonic()
            choices = deciding.decide(answer.items, self._begin)
            request = DecisionRequest(
                session=self._session,
                position=deciding.position,
                choices=choices,
                horizons=deciding.horizons(),
                view=deciding.view(),
                warnings=deciding.warnings(),
            )
            self._since = None
            self._busy_s += time.monotonic() - began
            wanted = answer.snapshot_wanted or self._busy_s > SNAPSHOT_INTERVAL_S
            if wanted and time.monotonic() >= self._no_snapshot_before:
                self._add_snapshot(deciding, request)
            else:
                deciding.release()
            answer = self._call(request)
        return Outcome.RESTART if answer.restart else Outcome.ENDED

    def _add_snapshot(self, deciding: DecidingEngine, request: DecisionRequest) -> None:
        began = time.monotonic()
        snapshot = deciding.release(SNAPSHOT_WAIT_S if began >= self._no_wait_before else 0.0)
        if snapshot is None and deciding.keeps_state:
            self._no_wait_before = max(self._no_wait_before, began + SNAPSHOT_RETRY_S)
            return
        self._busy_s = 0.0
        if snapshot is None or len(snapshot) > MAX_SNAPSHOT_BYTES:
            self._no_snapshot_before = began + SNAPSHOT_RETRY_S
            request.no_snapshot = True
        else:
            request.snapshot = snapshot

    def _begin(self) -> None:
        self._since = time.monotonic()

    def _call(self, request: DecisionRequest) -> DecisionAnswer:
        return _call(self._calls, request)

    # -- outside the sequence of calls --

    def _send_suggestions(self) -> None:
        while not self._stopped.is_set():
            try:
                event = self._outbox.get(timeout=1.0)
            except queue.Empty:
                continue
            self._suggestions += 1
            self._send_out_of_band(
                DecisionRequest(session=self._session, suggestion=event, suggestion_number=self._suggestions)
            )

    def _send_out_of_band(self, request: DecisionRequest) -> None:
        try:
            _call(self._side_client, request)
        except RefusedError:
            self._stale.set()  # the next call in order finds out, too

    def _watch(self, start: DeciderStart) -> None:
        """Say that the user's code is active, and end what takes too long."""
        reported_at = idle_at = calls_since = time.monotonic()
        calls = 0
        while not self._stopped.wait(0.2):
            now, since, deciding, replaying = time.monotonic(), self._since, self._deciding, self._replaying
            working = deciding.search.active_thread if deciding is not None else None
            if deciding is not None and (deciding.search.calls != calls or (working is None and not replaying)):
                calls, calls_since = deciding.search.calls, now
            elif working is not None and now - calls_since > start.suggestion_timeout_s:
                frame = _frame(working.ident or 0)
                self._exit_timed_out(frame, start.suggestion_timeout_s, "a suggestion")
                return
            if since is None:
                idle_at = now
                continue
            limit_s, what, began = start.decision_timeout_s, "a decision", since
            if deciding is None:  # it is loaded, with what it imports
                limit_s, what = max(limit_s, LOAD_TIMEOUT_S), "loading the deciding code"
            elif replaying:
                limit_s, what = max(limit_s, start.suggestion_timeout_s), "repeating a recorded decision"
                began = max(since, calls_since)
            if now - began > limit_s:
                self._exit_timed_out(_frame(self._main), limit_s, what)
                return
            if now - max(idle_at, reported_at) > BUSY_INTERVAL_S:
                reported_at = now
                self._send_out_of_band(DecisionRequest(session=self._session, busy=True))

    def _exit_timed_out(self, frame: FrameType | None, limit_s: float, what: str) -> None:
        text = "".join(traceback.format_stack(frame)) if frame is not None else ""
        where = (
            f" (at {getattr(frame.f_code, 'co_qualname', frame.f_code.co_name)}, line {frame.f_lineno})"
            if frame is not None
            else ""
        )
        message = (
            f"{what} took longer than {limit_s:g} s{where}; make the code faster, or raise the limit in spec.decider"
        )
        sys.stderr.write(f"trialpod: {message}\n{text}")
        sys.stderr.flush()
        self._send_out_of_band(
            DecisionRequest(session=self._session, problem=message, traceback=text[-MAX_SENT_TRACEBACK:])
        )
        self._leave(Outcome.FAILED.value)


def _call(client: ReportClient, request: DecisionRequest) -> DecisionAnswer:
    body = encode(request)
    while True:
        client.wait_until_allowed()
        try:
            with client.lock:
                return client.call("decisions", body, decode_answer, timeout_s=CALL_TIMEOUT_S)
        except TransportError:
            continue


def _frame(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see where another thread is


def _release() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trialpod")
    except PackageNotFoundError:
        return ""
