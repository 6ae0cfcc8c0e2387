"""The report service: turns the calls of attempts into events of their experiment, and its state into answers.

It knows nothing of sockets, processes and pods. A transport passes path and body, and in a cluster the caller's
identity; `Experiments` finds the experiment.

Invariants:

* Every call is idempotent: the attempt repeats a call until it has an answer.
* A call that its caller may not make changes nothing, and discloses nothing about an experiment of another namespace,
  not even whether it exists.
* An answer is sent only after everything that it refers to has been committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote

import msgspec

from trialpod.errors import StorageError
from trialpod.protocol.messages import (
    MAX_RESULT_BYTES,
    PROTOCOL_VERSION,
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CredentialsAnswer,
    CredentialsRequest,
    ErrorAnswer,
    ReportAnswer,
    ReportRequest,
)
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, CheckpointsChanged, ResultsReceived
from trialpod_operator.experiment.decisions.messages import DecisionAnswer, DecisionRequest
from trialpod_operator.experiment.decisions.messages import encode as encode_decisions
from trialpod_operator.experiment.decisions.queue import StaleSessionError
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports.connection import error as refuse_until
from trialpod_operator.reports.decode_request import MAX_COUNT, BadRequestError, decode_request
from trialpod_operator.reports.protocol_mismatch import protocol_mismatch

logger = logging.getLogger(__name__)

Reply = tuple[int, bytes]

_encoder = msgspec.msgpack.Encoder()
_report_decoder = msgspec.msgpack.Decoder(ReportRequest)
_assignment_decoder = msgspec.msgpack.Decoder(AssignmentRequest)
_credentials_decoder = msgspec.msgpack.Decoder(CredentialsRequest)
_decisions_decoder = msgspec.msgpack.Decoder(DecisionRequest)


OPENING_S = 10.0
"""Maximum time that a call waits for its experiment to be opened; then it is refused, and repeated."""

RETRY_AFTER_S = (1.0, 3.0)
"""An attempt whose experiment no operator serves retries after a time between these."""


class ElsewhereError(NotReadyError):
    """Another operator serves the experiment.

    Attributes:
        address: "host:port" of its report service; "" = no operator serves the experiment at the moment.
    """

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class Caller(Protocol):
    """The pod that calls; its identity has been verified."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        ...

    @property
    def pod_name(self) -> str:
        """The pod's name."""
        ...

    @property
    def pod_uid(self) -> str:
        """The pod's uid: unlike its name, it is never used again."""
        ...


class OpenExperiment(Protocol):
    """What the service needs of an experiment: `DurableExperiment`. Each method may raise `NotReadyError`."""

    def apply(self, event: AnyEvent) -> None:
        """Apply and journal an event."""
        ...

    def received(self, trial_id: str, attempt: int) -> int | None:
        """Return how many results of the attempt are known; None when it is superseded."""
        ...

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return the answer to the attempt's report."""
        ...

    def undecided(self) -> Awaitable[None] | None:
        """Return None when all events are applied, else what to await until a decider has decided."""
        ...

    def committed(self) -> Awaitable[None] | None:
        """Return None when everything applied so far is durable, else what to await until that is so."""
        ...

    def require_fencing_check(self) -> None:
        """Have `committed` wait for a check that no other process has taken the experiment over."""
        ...


class Runners(Protocol):
    """The processes or pods in which an experiment's attempts run. Each method may raise `NotReadyError`."""

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Return the work of a runner, at once or when there is some."""
        ...

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """Record the end that an attempt reports; return the end to journal."""
        ...

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        """Return why the caller may not speak for the trial; asked only when the caller is known."""
        ...


class Served(NamedTuple):
    """An open experiment and its runners."""

    experiment: OpenExperiment
    runners: Runners


class Experiments(Protocol):
    """Where the service finds experiments."""

    def find(self, name: str) -> Served | None:
        """Return the experiment of that name ("name", or "namespace/name" in a cluster).

        None refuses the caller for good; for one that is only not loaded yet, raise `NotReadyError`, for one that
        another operator serves, `ElsewhereError`.
        """
        ...


@runtime_checkable
class SupportsCallerLookup(Protocol):
    """Experiments that know which of them a caller belongs to."""

    def experiment_of(self, caller: Caller) -> str:
        """Return the name of that experiment, "" when it is not known."""
        ...


@runtime_checkable
class SupportsOpening(Protocol):
    """Experiments that are opened while attempts already call."""

    def opening(self, name: str) -> Awaitable[None] | None:
        """Return what to await until the next try to open an experiment has ended; None when there will be none."""
        ...


@runtime_checkable
class SupportsRunnerAuthorization(Protocol):
    """Runners that check whether a caller is the runner that it says it is."""

    def admits(self, caller: Caller, trial_id: str, attempt: int) -> str | None:
        """Return why the caller is not the runner of that name."""
        ...


@runtime_checkable
class SupportsCredentials(Protocol):
    """Runners that need keys for the experiment's storage."""

    def credentials(self, trial_id: str, attempt: int) -> Awaitable[CredentialsAnswer]:
        """Return keys to what the attempt needs, or why there are none now."""
        ...


@runtime_checkable
class SupportsDecider(Protocol):
    """An experiment whose decisions a decider may make."""

    def decide(self, request: DecisionRequest) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        """Answer a call of the decider."""
        ...


@runtime_checkable
class SupportsDeciderAuthorization(Protocol):
    """Runners that know which pod is the experiment's decider."""

    def admits_decider(self, caller: Caller) -> str | None:
        """Return why the caller is not the experiment's decider."""
        ...


class ReportService:
    """Answers the calls of all attempts of all experiments.

    Args:
        experiments: where they are found.
        observe: called for each report with the number of seconds its answer took, its commit included.
        timer: monotonic seconds.
        uniform: returns a number in [0, 1), which spreads retries.
    """

    def __init__(
        self,
        experiments: Experiments,
        observe: Callable[[float], None] | None = None,
        timer: Callable[[], float] = time.perf_counter,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._uniform = uniform
        self._experiments = experiments
        self._observe = observe
        self._timer = timer

    def handle(self, path: str, body: bytes, caller: Caller | None = None) -> Reply | Awaitable[Reply]:
        """Answer one call.

        Args:
            path: ``/v1/{experiment}/{call}``, percent-encoded.
            body: the MessagePack request.
            caller: the calling pod, in a cluster; it may act only for the trials that `Runners.permits`.

        Returns:
            HTTP status and MessagePack body, or an awaitable of them when there is no work yet, when what was applied
            has to be committed first, or while the experiment is being opened: after a restart of the operator
            callers that come again and again would take the time that the opening needs.
        """
        return self._handle(path, body, caller, waits=True)

    def _handle(self, path: str, body: bytes, caller: Caller | None, *, waits: bool) -> Reply | Awaitable[Reply]:
        if "%" in path:
            try:
                path = unquote(path, errors="strict")
            except UnicodeDecodeError:
                return refuse(400, "the path is not UTF-8")
        parts = path.strip("/").split("/")
        if len(parts) < 3 or parts[-1] not in ("assignment", "report", "credentials", "decisions"):
            return refuse(404, f"unknown path {path}")
        if parts[0] != f"v{PROTOCOL_VERSION}":
            return refuse(
                404,
                f"version {parts[0]} of the report protocol is not supported, only v{PROTOCOL_VERSION}; use the same "
                "trialpod on both sides",
            )
        if caller is not None and parts[1:-2] != [caller.namespace]:
            return refuse(403, f"pod {caller.pod_name} is in namespace {caller.namespace} and may report only there")
        name = "/".join(parts[1:-1])
        try:
            served = self._experiments.find(name)
            if served is None:
                return refuse(404, f"there is no experiment '{name}' here")
            if parts[-1] == "report":
                return self._report(served, body, caller)
            if parts[-1] == "credentials":
                return self._credentials(served, decode_request(_credentials_decoder, body), caller)
            if parts[-1] == "decisions":
                return self._decide(served, decode_request(_decisions_decoder, body), caller)
            return self._assign(served, decode_request(_assignment_decoder, body), caller)
        except BadRequestError as error:
            return refuse(400, str(error))
        except msgspec.ValidationError as error:
            return refuse(400, f"the request is not valid: {error}")
        except NotReadyError as error:
            # A pod of another experiment is refused for good: it would retry forever.
            if caller is not None and isinstance(self._experiments, SupportsCallerLookup):
                belongs_to = self._experiments.experiment_of(caller)
                if belongs_to and belongs_to != name:
                    return refuse(403, f"pod {caller.pod_name} belongs to {belongs_to} and may not report to {name}")
            if isinstance(error, ElsewhereError):
                return self._redirect(error)
            if waits and isinstance(self._experiments, SupportsOpening):
                opening = self._experiments.opening(name)
                if opening is not None:
                    return self._handle_when(opening, path, body, caller)
            return refuse(503, str(error))

    async def _handle_when(self, opening: Awaitable[None], path: str, body: bytes, caller: Caller | None) -> Reply:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                await asyncio.shield(opening)  # others wait for it too
        reply = self._handle(path, body, caller, waits=False)
        return await reply if inspect.isawaitable(reply) else reply

    def _redirect(self, error: ElsewhereError) -> Reply:
        if error.address:
            return 421, _encoder.encode(ErrorAnswer(error=str(error), address=error.address))
        soonest, latest = RETRY_AFTER_S
        message = f"{error}, and by no other operator at the moment"
        return refuse_until(503, message, soonest + (latest - soonest) * self._uniform())

    def _report(self, served: Served, body: bytes, caller: Caller | None) -> Reply | Awaitable[Reply]:
        request = decode_request(_report_decoder, body)
        if len(body) > MAX_RESULT_BYTES and (size := max(map(_size, request.results), default=0)) > MAX_RESULT_BYTES:
            large = f"a result of {size} bytes is over the limit of {MAX_RESULT_BYTES} bytes"
            return refuse(413, f"{large}; put large data into a checkpoint")
        experiment = served.experiment
        if caller is not None and (why := served.runners.permits(caller, request.trial_id)):
            return _send_away(experiment, why)
        began = self._timer()
        known = experiment.received(request.trial_id, request.attempt)
        _receive(served, request, known)
        if (undecided := experiment.undecided()) is not None and _has_news(request):
            return self._report_decided(served, request, known, undecided, began)
        answer = _answer(served, request, known)
        answer.durable = answer.received  # the answer is sent once they are
        encoded = _encoder.encode(answer)  # now: what is decided before it is sent may not be durable then
        if request.end is not None and (undecided := experiment.undecided()) is not None:
            return self._end_decided(experiment, encoded, undecided, began)
        committed = experiment.committed()
        if committed is None:
            if self._observe is not None:
                self._observe(self._timer() - began)
            return 200, encoded
        return self._report_later(encoded, committed, began)

    async def _report_decided(
        self, served: Served, request: ReportRequest, known: int | None, undecided: Awaitable[None], began: float
    ) -> Reply:
        """Answer when a decider has decided about what was reported."""
        experiment = served.experiment
        try:
            await undecided
            answer = _answer(served, request, known)
        except NotReadyError as error:
            return refuse(503, str(error))
        answer.durable = answer.received
        encoded = _encoder.encode(answer)
        left = experiment.undecided() if request.end is not None else None
        return await self._end_decided(experiment, encoded, left, began)

    async def _end_decided(
        self, experiment: OpenExperiment, encoded: bytes, undecided: Awaitable[None] | None, began: float
    ) -> Reply:
        try:
            if undecided is not None:
                await undecided
            committed = experiment.committed()
        except NotReadyError as error:
            return refuse(503, str(error))
        refusal = await _outcome(committed) if committed is not None else None
        if self._observe is not None:
            self._observe(self._timer() - began)
        return refusal or (200, encoded)

    def _decide(self, served: Served, request: DecisionRequest, caller: Caller | None) -> Reply | Awaitable[Reply]:
        experiment, runners = served
        if not isinstance(experiment, SupportsDecider):
            return refuse(404, "this experiment has no decider")
        if caller is not None:
            if not isinstance(runners, SupportsDeciderAuthorization):
                return refuse(403, "this experiment has no decider")
            if why := runners.admits_decider(caller):
                return refuse(403, why)
        if why := protocol_mismatch(request):
            return refuse(426, why)
        try:
            answer = experiment.decide(request)
        except StaleSessionError as error:
            return refuse(409, str(error))
        if isinstance(answer, DecisionAnswer):
            return 200, encode_decisions(answer)

        async def later(waiting: Awaitable[DecisionAnswer]) -> Reply:
            return 200, encode_decisions(await waiting)

        return later(answer)

    async def _report_later(self, encoded: bytes, committed: Awaitable[None], began: float) -> Reply:
        refusal = await _outcome(committed)
        if self._observe is not None:
            self._observe(self._timer() - began)
        return refusal or (200, encoded)

    def _credentials(
        self, served: Served, request: CredentialsRequest, caller: Caller | None
    ) -> Reply | Awaitable[Reply]:
        runners = served.runners
        if caller is not None and (why := runners.permits(caller, request.trial_id)):
            return refuse(403, why)
        if caller is None or not isinstance(runners, SupportsCredentials):
            return refuse(404, "this service issues no keys for the storage")

        async def answer(keys: Awaitable[CredentialsAnswer]) -> Reply:
            try:
                return 200, _encoder.encode(await keys)
            except NotReadyError as error:
                return refuse(503, str(error))

        return answer(runners.credentials(request.trial_id, request.attempt))

    def _assign(self, served: Served, request: AssignmentRequest, caller: Caller | None) -> Reply | Awaitable[Reply]:
        experiment, runners = served
        why_not: Callable[[], str | None] | None = None
        if caller is not None:
            trial_id, slash, attempt = request.runner.rpartition("/")
            numbered = attempt.isascii() and attempt.isdigit() and len(attempt) <= len(str(MAX_COUNT))
            if not (slash and trial_id and numbered):
                return refuse(400, f"the runner {request.runner[:100]!r} is not of the form trial/attempt")
            why_not = (
                partial(runners.admits, caller, trial_id, int(attempt))
                if isinstance(runners, SupportsRunnerAuthorization)
                else partial(runners.permits, caller, trial_id)
            )
            if why := why_not():
                return _send_away(experiment, why)
            if why := protocol_mismatch(request):
                # As the end of the attempt it appears where users look: in the trial's status and the events.
                _end(served, trial_id, int(attempt), AttemptEnd(cause="failed", error=why, retry=False))
                return _refuse_when(426, why, experiment.committed())
        elif why := protocol_mismatch(request):
            return refuse(426, why)
        answer = runners.assign(request)
        if isinstance(answer, AssignmentAnswer):
            committed = _committed(experiment, answer)
            if committed is None:
                return 200, _encoder.encode(answer)
            return self._assign_when(answer, committed)
        return self._assign_later(experiment, answer, why_not)

    async def _assign_later(
        self,
        experiment: OpenExperiment,
        answer: Awaitable[AssignmentAnswer],
        why_not: Callable[[], str | None] | None,
    ) -> Reply:
        try:
            found = await answer
            if why_not is not None and (why := why_not()):
                # Its pod was replaced while it waited: the answer is for the new pod.
                refusal = _send_away(experiment, why)
                return refusal if isinstance(refusal, tuple) else await refusal
            committed = _committed(experiment, found)
        except NotReadyError as error:
            return refuse(503, str(error))
        return await self._assign_when(found, committed)

    async def _assign_when(self, answer: AssignmentAnswer, committed: Awaitable[None] | None) -> Reply:
        if committed is not None and (refusal := await _outcome(committed)) is not None:
            return refusal
        return 200, _encoder.encode(answer)


def _committed(experiment: OpenExperiment, answer: AssignmentAnswer) -> Awaitable[None] | None:
    """Return what an answer has to wait for. One without work ends a process, so it waits for the fencing check."""
    if answer.assignment is None:
        experiment.require_fencing_check()
    return experiment.committed()


def _has_news(request: ReportRequest) -> bool:
    checkpoints = request.checkpoints or request.deleted_checkpoints or request.unneeded_checkpoints
    return bool(request.results or checkpoints) or request.end is not None


def _receive(served: Served, request: ReportRequest, received: int | None) -> None:
    """Apply what is new in a report, except its end; `received`: how many results of the attempt are known."""
    experiment = served.experiment
    trial_id, attempt = request.trial_id, request.attempt
    if received is None or request.first > received + 1:
        # Superseded, which ends the process; or a gap: the operator that received the missing results has died, or
        # still runs.
        experiment.require_fencing_check()
        return
    checkpoints = request.checkpoints
    if request.first + len(request.results) - 1 > received:
        experiment.apply(
            ResultsReceived(
                trial_id=trial_id,
                attempt=attempt,
                first=request.first,
                results=request.results,
                committed=checkpoints,
                nested=request.nested,
            )
        )
        checkpoints = []
    if checkpoints or request.deleted_checkpoints or request.unneeded_checkpoints:
        experiment.apply(
            CheckpointsChanged(
                trial_id=trial_id,
                attempt=attempt,
                committed=checkpoints,
                deleted=request.deleted_checkpoints,
                unneeded=request.unneeded_checkpoints,
            )
        )


def _answer(served: Served, request: ReportRequest, received: int | None) -> ReportAnswer:
    """Return the answer to a report that was received, and apply its end."""
    experiment = served.experiment
    answer = experiment.answer(request.trial_id, request.attempt)
    if received is None or request.first > received + 1:
        return answer
    if answer.superseded:
        experiment.require_fencing_check()
    if request.end is not None:
        # The trial's next attempt may start at once; this one learns of its own end, not that it is superseded.
        _end(served, request.trial_id, request.attempt, request.end)
    return answer


def _end(served: Served, trial_id: str, attempt: int, end: AttemptEnd) -> None:
    end = served.runners.attempt_ended(trial_id, attempt, end)
    served.experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=end))


def _size(result: msgspec.Raw) -> int:
    return len(memoryview(result))


def _send_away(experiment: OpenExperiment, why: str) -> Reply | Awaitable[Reply]:
    """Refuse a caller, which ends its process, after a check that no other operator has taken the experiment over."""
    experiment.require_fencing_check()
    return _refuse_when(403, why, experiment.committed())


def _refuse_when(status: int, message: str, committed: Awaitable[None] | None) -> Reply | Awaitable[Reply]:
    """Return an error answer once everything applied so far is durable."""
    if committed is None:
        return refuse(status, message)

    async def later() -> Reply:
        return await _outcome(committed) or refuse(status, message)

    return later()


async def _outcome(committed: Awaitable[None]) -> Reply | None:
    """Wait for the commit; return the refusal if it failed, after which the attempt repeats its report."""
    try:
        await committed
    except (NotReadyError, StorageError) as error:
        logger.warning("an attempt waits for its answer: %s", error)
        return refuse(503, f"the experiment's journal cannot be stored at the moment: {error}")
    return None


def refuse(status: int, message: str) -> Reply:
    """Return an error answer."""
    return status, _encoder.encode(ErrorAnswer(error=message))
