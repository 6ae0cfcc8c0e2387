"""The decider's pod is asked for, and what keeps it from being made is named."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from test_decider_pod import OPTIONS, OWNER, experiment

from trialpod_operator.api.api_errors import NotServedError, api_error
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
        needed=True, deciding=False, problem=None, waits_since=None, last_call=0.0, end_session=lambda: None
    )
    asyncio.run(keeper.reconcile(experiment(**spec), None, queue))  # type: ignore[arg-type]
    keeper.queue = queue  # type: ignore[attr-defined]
    return keeper


class TestPod:
    def test_unknown_fields_of_its_template_are_refused(self) -> None:
        server = Server()
        kept(server, decider=NAMED)
        assert [strict for _, strict in server.created] == [True]

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


class Machine:
    """A decider's pod that exists, and the keeper that looks at it; `now` is the time."""

    def __init__(self, *, created: float, started: float | None) -> None:
        self.now, self.deleted = 1000.0, list[str]()
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
            opened_at=self.now,
            last_call=0.0,
            end_session=lambda: None,
        )

    def look(self, now: float) -> list[str]:
        self.now = now
        asyncio.run(self.keeper.reconcile(self.manifest, None, self.queue))  # type: ignore[arg-type]
        return self.deleted

    def deciders(self, _key: str) -> list[Any]:
        return [self.pod]

    def update_pod(self, _pod: Mapping[str, Any], *, deleted: bool) -> None:
        assert not deleted

    async def get(self, _collection: str, _name: str) -> dict[str, Any]:
        return self.pod

    async def delete(self, _collection: str, name: str, *, uid: str = "") -> bool:
        self.deleted.append(name)
        return True

    async def create(self, _collection: str, body: Mapping[str, Any], *, strict: bool = False) -> Mapping[str, Any]:
        return body


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
