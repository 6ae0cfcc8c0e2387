"""The decider's pod is asked for, and what keeps it from being made is named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from test_decider_pod import OPTIONS, OWNER, experiment

from trialpod_operator.api.api_errors import NotServedError, api_error
from trialpod_operator.cluster.decider.keeper import DeciderKeeper
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
