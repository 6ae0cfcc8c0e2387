"""The real client of an attempt against the real report service, engine and journal, over a transport that fails.

Whatever is lost, repeated or killed on the way: each result counts once, in order, and stands once in result.json.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod.protocol.attempt_link import AttemptLink
from trialpod.protocol.client import ReportClient
from trialpod.protocol.http import Connection, TransportError
from trialpod.protocol.messages import (
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CheckpointInfo,
    ReportAnswer,
    TrainableRef,
)
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.engine.events import AnyEvent, AttemptStarted, Recovered, SettingsObserved, TimerFired
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.reports.service import Caller, ReportService, Served

FATES = (
    "delivered",
    "request lost",
    "answer lost",
    "repeated",
    "server killed before",
    "server killed after",
    "snapshot",
)


class Operator:
    """An experiment of one trial with its report service; `kill` is what ``kill -9`` and a new start are to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1_700_000_000.0
        self.host = self._open()
        self.host.apply(SettingsObserved(settings=self._plan().settings))
        self.service = ReportService(self)

    def kill(self) -> None:
        live = [(trial.trial_id, trial.attempt) for trial in self.host.engine.state.running.values()]
        self.host = self._open()
        self.host.apply(Recovered(live=live))

    @property
    def trial(self) -> Trial:
        return next(iter(self.host.engine.state.trials.values()))

    def find(self, name: str) -> Served | None:
        return Served(self, self) if name == "contract" else None

    def apply(self, event: AnyEvent) -> None:
        self.host.apply(event)

    def received(self, trial_id: str, attempt: int) -> int | None:
        return self.host.engine.received(trial_id, attempt)

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return self.host.engine.answer(trial_id, attempt)

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        return end

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer:
        trial = self.trial
        self.apply(AttemptStarted(trial_id=trial.trial_id, attempt=trial.attempt, pid=request.pid))
        return AssignmentAnswer(assignment=self.host.assignment(trial))

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        return None

    def undecided(self) -> None:
        return None

    def committed(self) -> None:
        return None

    def require_fencing_check(self) -> None:
        return None

    def _open(self) -> JournaledEngine:
        return JournaledEngine(self._plan(), self.directory, lambda: self.now, lambda action: None)

    def _plan(self) -> ExperimentPlan:
        search = BasicVariantGenerator(seed=1)
        search.configure({}, 1)
        return ExperimentPlan(
            settings=Settings(name="contract", trainable_name="train", metric="value"),
            search=search,
            scheduler=FIFOScheduler(),
            stopper=None,
            trainable=TrainableRef(source=""),
        )


class FailingTransport:
    """In the place of a connection: each call meets the next fate, and the later ones arrive."""

    retry_after_s = None

    def __init__(self, operator: Operator, fates: list[str]) -> None:
        self._operator = operator
        self._fates = itertools.chain(fates, itertools.repeat("delivered"))

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        fate = next(self._fates)
        if fate == "server killed before":
            self._operator.kill()
        if fate in ("request lost", "server killed before"):
            raise TransportError(fate)
        if fate == "repeated":
            self._handle(path, body)
        if fate == "snapshot":
            self._operator.host.write_snapshot()
        answer = self._handle(path, body)
        if fate == "server killed after":
            self._operator.kill()
        if fate in ("answer lost", "server killed after"):
            raise TransportError(fate)
        return answer

    def close(self) -> None:
        pass

    def _handle(self, path: str, body: bytes) -> tuple[int, bytes]:
        return cast("tuple[int, bytes]", self._operator.service.handle(path, body))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def attempt_of(operator: Operator, fates: list[str]) -> AttemptLink:
    clock = Clock()
    client = ReportClient(
        "unix:/nowhere",
        "contract",
        clock=clock,
        sleep=clock.sleep,
        uniform=lambda: 0.5,
        connection=cast("Connection", FailingTransport(operator, fates)),
    )
    assignment = client.assignment(AssignmentRequest(runner="r", pid=7, hostname="h")).assignment
    assert assignment is not None
    return AttemptLink(client, assignment.trial_id, assignment.attempt, horizons=assignment.horizons)


def result(number: int) -> bytes:
    return metrics_encoder.encode({"value": float(number), "training_iteration": number, "done": False})


def lines_of(operator: Operator) -> list[dict[str, Any]]:
    operator.host.flush()
    path = operator.host.files.path(operator.trial) / "result.json"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


STEPS = st.lists(st.sampled_from(["report", "report", "report", "wait", "checkpoint"]), max_size=25)


@settings(max_examples=60)
@given(steps=STEPS, fates=st.lists(st.sampled_from(FATES), max_size=20))
def test_each_result_counts_once_whatever_happens_on_the_way(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], fates: list[str]
) -> None:
    operator = Operator(tmp_path_factory.mktemp("experiment"))
    link = attempt_of(operator, fates)
    reported, checkpoints = 0, []
    for step in steps:
        if step == "report":
            reported += 1
            link.publish(result(reported), wake=False)
        elif step == "wait":
            assert link.wait_decision() is None
            assert operator.trial.current.received == reported
        elif reported:
            info = CheckpointInfo(
                name=f"checkpoint_{len(checkpoints):06d}",
                index=len(checkpoints),
                iteration=reported,
                metrics={},
                attempt=1,
            )
            checkpoints.append(info.name)
            link.announce(info)
    link.finish(AttemptEnd(cause="completed"))

    trial = operator.trial
    assert (trial.status, trial.results) == ("TERMINATED" if reported else "ERROR", reported)
    assert [line["training_iteration"] for line in lines_of(operator)] == list(range(1, reported + 1))
    assert [checkpoint.name for checkpoint in trial.checkpoints] == checkpoints
    operator.kill()
    assert [line["training_iteration"] for line in lines_of(operator)] == list(range(1, reported + 1))
    assert operator.trial.results == reported


BODY = msgspec.msgpack.encode({"trial_id": "x", "attempt": 1})


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        pytest.param("/v1/other/report", BODY, 404, "there is no experiment 'other'", id="unknown experiment"),
        pytest.param(
            "/v9/contract/report",
            BODY,
            404,
            "version v9 of the report protocol is not supported",
            id="newer protocol",
        ),
        pytest.param("/v1/contract/delete", BODY, 404, "unknown path", id="unknown call"),
        pytest.param("/v1/contract/report", b"\xc1", 400, "cannot be read", id="no MessagePack"),
        pytest.param("/v1/contract/report", msgspec.msgpack.encode([1]), 400, "cannot be read", id="wrong type"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_words(
    tmp_path: Path, path: str, body: bytes, status: int, words: str
) -> None:
    answered, answer = say(Operator(tmp_path), body, path)
    assert answered == status
    assert words in msgspec.msgpack.decode(answer)["error"]


def test_a_result_that_is_no_map_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    status, answer = say(operator, report_of(operator, results=[[1, 2]]))
    assert status == 400
    assert "a result must be a map" in msgspec.msgpack.decode(answer)["error"]
    assert operator.trial.current.received == 0


def test_a_replaced_attempt_is_answered_superseded(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.host.apply(Recovered(live=[]))  # its process was taken for dead, and the next attempt started
    status, answer = say(operator, report_of(operator, results=[{"value": 1.0}]))
    assert (status, msgspec.msgpack.decode(answer, type=ReportAnswer).superseded) == (200, True)
    assert operator.trial.results == 0


def test_nothing_is_taken_from_behind_a_gap(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    end = {"cause": "completed"}
    status, answer = say(operator, report_of(operator, first=2, results=[{"value": 2.0}], end=end))
    assert (status, msgspec.msgpack.decode(answer, type=ReportAnswer).received) == (200, 0)
    assert operator.trial.status == "RUNNING"


def test_an_end_that_comes_behind_a_gap_is_not_taken_either(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    status, answer = say(operator, report_of(operator, first=2, end={"cause": "completed"}))
    assert (status, msgspec.msgpack.decode(answer, type=ReportAnswer).received) == (200, 0)
    assert operator.trial.status == "RUNNING"


def test_late_report_does_not_revive_a_deleted_checkpoint(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    infos = [
        CheckpointInfo(name=f"checkpoint_{index:06d}", index=index, iteration=1, metrics={}, attempt=1)
        for index in range(2)
    ]
    first, second = (report_of(operator, results=[{"value": 1.0}], checkpoints=[info]) for info in infos)
    say(operator, first)
    say(operator, second)
    say(operator, report_of(operator, first=2, results=[{"value": 2.0}], checkpoints=[infos[1]]))
    say(operator, report_of(operator, first=3, deleted_checkpoints=[infos[0].name]))
    say(operator, first)
    assert [info.name for info in operator.trial.checkpoints] == [infos[1].name]


def test_experiment_clock_advances_when_wall_clock_goes_back(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    before = operator.host.now()
    operator.now -= 3600.0
    operator.host.apply(TimerFired())
    assert operator.host.now() == before
    operator.now += 10.0
    assert operator.host.now() == before + 10.0
    operator.kill()
    operator.now += 10.0
    assert operator.host.now() >= before + 10.0


def report_of(operator: Operator, **fields: Any) -> bytes:
    return msgspec.msgpack.encode({"trial_id": operator.trial.trial_id, "attempt": 1, **fields})


def say(operator: Operator, body: bytes, path: str = "/v1/contract/report") -> tuple[int, bytes]:
    return cast("tuple[int, bytes]", operator.service.handle(path, body))
