"""What really happened in a run, noted beside what was answered, for the oracles to compare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import Any

import msgspec
from sim_kernel import Process

from trialpod.protocol.messages import AssignmentAnswer, ReportAnswer, ReportRequest


class Track:
    """What the attempts of one experiment did and were told.

    Attributes:
        name: of the experiment.
        sent: (trial, attempt) -> number -> what the result is known by.
        acked: (trial, attempt) -> how many results were answered as durable.
        began_at: (trial, attempt) -> when its first result was sent.
        acked_at: (trial, attempt) -> (time, how many), each time it was more.
        harmed: by trial: how often an attempt failed by its own fault.
        failed_at: (trial, attempt) -> when the first of its ranks above 0 failed by its own fault.
        completed_at: (trial, attempt) -> when its rank 0 first said that it is done.
        groups: (trial, attempt) -> rank -> its process, and the steps that it has taken.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        self.began_at: dict[tuple[str, int], float] = {}
        self.acked: Counter[tuple[str, int]] = Counter()
        self.acked_at: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        self.harmed: Counter[str] = Counter()
        self.failed_at: dict[tuple[str, int], float] = {}
        self.completed_at: dict[tuple[str, int], float] = {}
        self.groups: dict[tuple[str, int], dict[int, tuple[Process, int]]] = defaultdict(dict)


class Witness(ABC):
    """Takes notes.

    Attributes:
        problems: what must never happen.
        steps: what each step of user code made, by its own name: (trial, attempt, iteration, sum).
    """

    problems: list[str]
    steps: dict[str, tuple[str, int, int, float]]

    @abstractmethod
    def track_of(self, process: Process) -> Track:
        """Return what is noted of a process's experiment."""

    def group_of(self, process: Process) -> dict[int, tuple[Process, int]]:
        """Return the ranks of the attempt that a process has."""
        return self.track_of(process).groups[process.attempt]  # type: ignore[attr-defined]

    @abstractmethod
    def given(self, process: Process, trial_id: str, attempt: int) -> None:
        """A process was told of its attempt."""

    def record_sent(self, process: Process, body: bytes) -> None:
        request = msgspec.msgpack.decode(body, type=ReportRequest)
        track = self.track_of(process)
        if request.results:
            track.began_at.setdefault((request.trial_id, request.attempt), process.kernel.now)
        numbers = track.sent[request.trial_id, request.attempt]
        done = request.end is not None and request.end.cause == "completed"
        for number, raw in enumerate(request.results, request.first):
            result = msgspec.msgpack.decode(raw)
            uid, done = str(result["uid"]), done or bool(result.get("done"))
            known = numbers.setdefault(number, uid)
            if known != uid:
                self.problems.append(f"{request.trial_id}/{request.attempt}: result {number} was {known}, then {uid}")
        if done:
            track.completed_at.setdefault((request.trial_id, request.attempt), process.kernel.now)

    def record_answer(self, process: Process, path: str, body: bytes, status: int, data: bytes) -> None:
        if status == 200 and path.endswith("/assignment"):
            assignment = msgspec.msgpack.decode(data, type=AssignmentAnswer).assignment
            if assignment is not None:
                attempt: Any = (assignment.trial_id, assignment.attempt)
                process.attempt = attempt  # type: ignore[attr-defined]
                self.given(process, *attempt)
        if status != 200 or not path.endswith("/report"):
            return
        request = msgspec.msgpack.decode(body, type=ReportRequest)
        answer = msgspec.msgpack.decode(data, type=ReportAnswer)
        if not answer.superseded:
            key, track = (request.trial_id, request.attempt), self.track_of(process)
            if answer.durable > track.acked[key]:
                track.acked[key] = answer.durable
                track.acked_at[key].append((process.kernel.now, answer.durable))
