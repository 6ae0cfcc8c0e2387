"""The decider's pod is asked for, and what keeps it from being made is named."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from test_decider_pod import OPTIONS, OWNER, experiment

from trialpod.storage.base import StorageUnavailableError
from trialpod_operator.api.api_errors import NotServedError, api_error
from trialpod_operator.cluster.decider import keeper as keeper_module
from trialpod_operator.cluster.decider.keeper import ASK_S, SILENT_S, DeciderKeeper
from trialpod_operator.cluster.decider.pod import build_decider
from trialpod_operator.experiment.own_code import is_manifest

NAMED = {"pickle": None, "scheduler": {"entrypoint": "mine:Own"}}


class Server:
    """Takes pods, or refuses them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.created: list[tuple[Mapping[str, Any], bool]] = []

    async def create(self, collection: str, body: Mapping[str, Any], *, strict: bool = False) -> Mapping[str, Any]:
        self.created.append((body, strict))
        if self.error is not None:
            raise self.error
        return body


class Cache:
    def deciders(self, key: str) -> list[Any]:
        return []

    def update_pod(self, pod: Mapping[str, Any], *, deleted: bool) -> None:
        pass


def kept(server: Server, **spec: Any) -> DeciderKeeper:
    """Return a keeper after it has asked for a pod."""
    options = SimpleNamespace(pod_options=OPTIONS)
    services = SimpleNamespace(clock=lambda: 1000.0, cache=Cache(), kube=server, options=options)
    keeper = DeciderKeeper(OWNER, services)  # type: ignore[arg-type]
    queue: Any = SimpleNamespace(
        needed=True,
        deciding=False,
        has_decided=False,
        problem=None,
        waits_since=None,
        last_call=0.0,
        end_session=lambda: None,
    )
    asyncio.run(keeper.reconcile(experiment(**spec), None, queue))  # type: ignore[arg-type]
    keeper.queue = queue  # type: ignore[attr-defined]
    return keeper


class TestPod:
    def test_unknown_fields_of_its_template_are_refused(self) -> None:
        server = Server()
        kept(server, decider=NAMED)
        assert [strict for _, strict in server.created] == [True]

    def test_fault_of_building_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(*_given: Any) -> Any:
            raise AttributeError("'list' object has no attribute 'get'")

        monkeypatch.setattr(keeper_module, "build_decider", build)
        keeper = kept(Server(), decider=NAMED)
        problem = keeper.problem(keeper.queue)  # type: ignore[attr-defined]
        assert problem is not None
        assert (problem.reason, problem.stalled) == ("InvalidTemplate", True)
        assert "no pod can be made of it: AttributeError: 'list' object" in problem.message

    def test_named_classes_travel_as_the_manifest(self) -> None:
        assert is_manifest(kept(Server(), decider=NAMED).code())

    def test_of_what_another_operator_serves_is_not_asked_for(self) -> None:
        with pytest.raises(NotServedError, match="does not serve the experiment any more"):
            kept(Server(NotServedError("POST", "/pods")), decider=NAMED)

    @pytest.mark.parametrize(
        ("status", "message", "reason", "stalled"),
        [
            (400, 'strict decoding error: unknown field "spec.nodeSelektor"', "InvalidTemplate", True),
            (403, "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1", "QuotaExceeded", False),
        ],
    )
    def test_a_refusal_has_its_own_reason(self, status: int, message: str, reason: str, stalled: bool) -> None:
        keeper = kept(Server(api_error("POST", "/pods", status, {"message": message})), decider=NAMED)
        problem = keeper.problem(keeper.queue)  # type: ignore[attr-defined]
        assert problem is not None
        assert (problem.reason, problem.stalled) == (reason, stalled)
        assert problem.message.startswith("the decider's pod cannot be made: ")


class TestCorrectedSpec:
    @pytest.mark.parametrize("times", [1, 5])
    def test_does_not_wait_for_the_backoff_of_a_refusal(self, times: int) -> None:
        refusal = api_error("POST", "/pods", 422, {"message": "spec.nodeName: Invalid value"})
        machine = Machine(created=1000.0, started=1000.0)
        machine.end(1)
        machine.look(1000.0)
        machine.refusal, now = refusal, 1000.0
        while len(machine.created) < times:
            now += 1.0
            machine.look(now)
        machine.look(now)
        assert len(machine.created) == times  # the same spec waits
        machine.refusal, machine.manifest = None, experiment(decider={**NAMED, "image": "corrected:1"})
        machine.look(now)
        assert len(machine.created) == times + 1

    def test_does_not_wait_for_the_backoff_of_ended_pods(self) -> None:
        machine = Machine(created=1000.0, started=1000.0)
        for number in range(1, 6):
            machine.end(number)
            machine.look(1000.0)
        assert machine.created == []
        machine.manifest = experiment(decider={**NAMED, "image": "corrected:1"})
        machine.look(1000.0)
        assert machine.created == ["digits-decider-6"]


class Machine:
    """A decider's pod that exists, and the keeper that looks at it; `now` is the time."""

    def __init__(self, *, created: float, started: float | None) -> None:
        self.now, self.deleted, self.created = 1000.0, list[str](), list[str]()
        self.refuses = False
        self.refusal: Exception | None = None  # of pods that are to be created
        self.location: Any = None
        self.manifest = experiment(decider=NAMED)
        self.pod: dict[str, Any] = build_decider(self.manifest, OWNER, 1, OPTIONS)
        self.pod["metadata"] |= {"uid": "p-1", "creationTimestamp": _time(created)}
        self.run(started)
        options = SimpleNamespace(pod_options=OPTIONS)
        services = SimpleNamespace(clock=lambda: self.now, cache=self, kube=self, options=options)
        self.keeper = DeciderKeeper(OWNER, services)  # type: ignore[arg-type]
        self.open()

    def run(self, started: float | None) -> None:
        states = [] if started is None else [{"name": "trial", "state": {"running": {"startedAt": _time(started)}}}]
        self.pod["status"] = {"phase": "Pending" if started is None else "Running", "containerStatuses": states}

    def open(self) -> None:
        self.queue: Any = SimpleNamespace(
            needed=True,
            deciding=False,
            has_decided=False,
            opened_at=self.now,
            last_call=0.0,
            end_session=lambda: None,
            waits_since=self.now,
            problem=None,
        )

    def look(self, now: float) -> list[str]:
        self.now = now
        asyncio.run(self.keeper.reconcile(self.manifest, self.location, self.queue))
        return self.deleted

    def deciders(self, _key: str) -> list[Any]:
        return [self.pod]

    def update_pod(self, _pod: Mapping[str, Any], *, deleted: bool) -> None:
        assert not deleted

    async def get(self, _collection: str, _name: str) -> dict[str, Any]:
        return self.pod

    async def delete(self, _collection: str, name: str, *, uid: str = "") -> bool:
        if self.refuses:
            raise api_error("DELETE", "/pods", 403, {"message": "protected"})
        self.deleted.append(name)
        return True

    async def create(self, _collection: str, body: Mapping[str, Any], *, strict: bool = False) -> Mapping[str, Any]:
        self.created.append(str(body["metadata"]["name"]))
        if self.refusal is not None:
            raise self.refusal
        return body

    def begin(self, number: int) -> None:
        """The pod of that number is there, and runs."""
        self.pod = build_decider(self.manifest, OWNER, number, OPTIONS)
        self.pod["metadata"] |= {"uid": f"p-{number}", "creationTimestamp": _time(self.now)}
        self.run(self.now)

    def end(self, number: int) -> None:
        """The pod of that number has ended."""
        self.begin(number)
        self.pod["status"] = {"phase": "Failed", "containerStatuses": []}


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class TestSilence:
    def test_of_an_earlier_operators_time_does_not_count(self) -> None:
        machine = Machine(created=400.0, started=402.0)
        assert machine.look(1000.0) == []
        assert machine.look(1000.0 + SILENT_S) == []
        assert machine.look(1000.0 + SILENT_S + ASK_S) == ["digits-decider-1"]

    def test_does_not_count_while_the_experiment_is_not_open(self) -> None:
        machine = Machine(created=400.0, started=402.0)
        machine.look(1000.0)
        machine.now = 1600.0
        machine.open()
        assert machine.look(1600.0) == []

    def test_begins_when_its_container_runs(self) -> None:
        machine = Machine(created=1000.0, started=None)
        assert machine.look(1000.0) == []
        machine.run(1000.0 + 2 * SILENT_S)
        assert machine.look(1001.0 + 2 * SILENT_S) == []
        assert machine.look(1001.0 + 3 * SILENT_S + ASK_S) == ["digits-decider-1"]


class TestEnds:
    def test_next_one_does_not_wait_for_a_refused_deletion(self) -> None:
        machine = Machine(created=1000.0, started=1000.0)
        machine.look(1000.0)
        machine.refuses = True
        machine.end(1)
        machine.look(1001.0)
        machine.look(1100.0)
        assert machine.created == ["digits-decider-2"]
        machine.refuses = False
        assert machine.look(1101.0) == ["digits-decider-1"]

    def test_of_those_that_load_and_decide_nothing_wait_longer(self) -> None:
        """Their code fails at the same event each time."""
        machine, waits = Machine(created=1000.0, started=1000.0), list[float]()
        now = 1000.0
        for number in range(1, 6):
            machine.end(number)
            machine.queue.deciding = False
            machine.look(now)
            began = now
            while len(machine.created) < number:
                now += 0.5
                machine.look(now)
            waits.append(now - began)
            machine.begin(number + 1)
            machine.queue.deciding = True
            machine.look(now)
        assert waits == sorted(waits)
        assert waits[-1] > 8 * waits[0]

    def test_one_that_has_decided_is_replaced_soon(self) -> None:
        machine = Machine(created=1000.0, started=1000.0)
        for number in range(1, 5):
            machine.begin(number)
            machine.queue.deciding = machine.queue.has_decided = True
            machine.look(1000.0 * number)
            machine.end(number)
            machine.queue.deciding = machine.queue.has_decided = False
            machine.look(1000.0 * number)
            machine.look(1000.0 * number + 1.0)
            assert len(machine.created) == number


class TestReplacedCode:
    def test_no_decider_runs_the_former_code_under_the_new_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The storage is away when the new code is to be read."""
        stored = {"old.pkl": b"old", "new.pkl": b"new"}
        away = [False]

        def read(file: str) -> bytes:
            if away[0]:
                raise StorageUnavailableError("no answer")
            return stored[file]

        monkeypatch.setattr(keeper_module, "open_storage", lambda _uri, _options: SimpleNamespace(read=read))

        def manifest(file: str) -> Any:
            pickle = {"uri": f"s3://bucket/digits/{file}", "sha256": hashlib.sha256(stored[file]).hexdigest()}
            return experiment(decider={"pickle": pickle})

        machine = Machine(created=1000.0, started=1000.0)
        machine.location = SimpleNamespace(uri="s3://bucket/digits", own=None)
        machine.manifest = manifest("old.pkl")
        machine.begin(1)
        machine.look(1000.0)
        assert machine.keeper.code() == b"old"
        away[0], machine.manifest = True, manifest("new.pkl")
        assert (machine.look(1001.0), machine.created) == ([], [])
        problem = machine.keeper.problem(machine.queue)
        assert problem is not None
        assert "cannot be read" in problem.message
        away[0] = False
        assert machine.look(1006.0) == ["digits-decider-1"]
        assert machine.keeper.code() == b"new"
