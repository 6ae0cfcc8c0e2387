"""The report service: turns the calls of attempts into events of their experiment, and its state into answers.

It knows nothing of sockets, processes and pods. A transport hands it path and body; `Experiments` finds the
experiment, which hands out work. Every call is idempotent: the attempt repeats a call until it has an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from trialpod.protocol.messages import (
    PROTOCOL_VERSION,
    AssignmentAnswer,
    AssignmentRequest,
    ErrorAnswer,
    ReportAnswer,
    ReportRequest,
)
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, CheckpointsChanged, ResultsReceived

Reply = tuple[int, bytes]

_encoder = msgspec.msgpack.Encoder()
_report_decoder = msgspec.msgpack.Decoder(ReportRequest)
_assignment_decoder = msgspec.msgpack.Decoder(AssignmentRequest)


class Experiment(Protocol):
    """What the service needs of one experiment."""

    def apply(self, event: AnyEvent) -> None:
        """Apply and journal an event."""
        ...

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what the attempt is to know."""
        ...

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Return the work of a runner, at once or when there is some."""
        ...


class Experiments(Protocol):
    """Where the service finds experiments."""

    def find(self, name: str) -> Experiment | None:
        """Return the experiment of that name ("name", or "namespace/name" in a cluster)."""
        ...


class ReportService:
    """Answers the calls of all attempts of all experiments."""

    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments

    def handle(self, path: str, body: bytes) -> Reply | Awaitable[Reply]:
        """Answer one call.

        Args:
            path: ``/v1/{experiment}/{call}``.
            body: the MessagePack request.

        Returns:
            HTTP status and MessagePack body, or an awaitable of them when there is no work yet.
        """
        parts = path.strip("/").split("/")
        if len(parts) < 3 or parts[-1] not in ("assignment", "report"):
            return refuse(404, f"unknown path {path}")
        if parts[0] != f"v{PROTOCOL_VERSION}":
            return refuse(404, f"protocol {parts[0]} is not spoken here, only v{PROTOCOL_VERSION}")
        name = "/".join(parts[1:-1])
        experiment = self._experiments.find(name)
        if experiment is None:
            return refuse(404, f"there is no experiment '{name}' here")
        try:
            if parts[-1] == "report":
                return self._report(experiment, _report_decoder.decode(body))
            return self._assign(experiment, _assignment_decoder.decode(body))
        except msgspec.MsgspecError as error:
            return refuse(400, f"the request cannot be read: {error}")

    def _report(self, experiment: Experiment, request: ReportRequest) -> Reply:
        trial_id, attempt = request.trial_id, request.attempt
        answer = experiment.answer(trial_id, attempt)
        if answer.superseded:
            return 200, _encoder.encode(answer)
        last = request.first + len(request.results) - 1
        if request.first <= answer.received + 1 <= last:
            experiment.apply(
                ResultsReceived(trial_id=trial_id, attempt=attempt, first=request.first, results=request.results)
            )
            answer = experiment.answer(trial_id, attempt)
        if request.results and answer.received < last:
            # A gap: what follows the results that are missing has to wait for them.
            return 200, _encoder.encode(answer)
        if request.checkpoints or request.deleted_checkpoints:
            experiment.apply(
                CheckpointsChanged(
                    trial_id=trial_id,
                    attempt=attempt,
                    committed=request.checkpoints,
                    deleted=request.deleted_checkpoints,
                )
            )
        if request.end is not None:
            experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=request.end))
        return 200, _encoder.encode(experiment.answer(trial_id, attempt))

    def _assign(self, experiment: Experiment, request: AssignmentRequest) -> Reply | Awaitable[Reply]:
        answer = experiment.assign(request)
        if isinstance(answer, AssignmentAnswer):
            return 200, _encoder.encode(answer)
        return self._assign_later(answer)

    async def _assign_later(self, answer: Awaitable[AssignmentAnswer]) -> Reply:
        return 200, _encoder.encode(await answer)


def refuse(status: int, message: str) -> Reply:
    """Return an error answer."""
    return status, _encoder.encode(ErrorAnswer(error=message))
