"""Calls for an experiment that is being opened: they wait for it, for a bounded time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from trialpod.protocol.messages import ReportRequest
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports import service as service_module
from trialpod_operator.reports.service import ReportService

BODY = msgspec.msgpack.encode(ReportRequest(trial_id="t_1", attempt=1))


class Experiments:
    """One that is not there yet."""

    def __init__(self, *, opens: bool = True) -> None:
        self.found = False
        self.looks = 0
        self._opens = opens
        self._opened = asyncio.get_running_loop().create_future()

    def find(self, name: str) -> Any:
        self.looks += 1
        if self.found:
            return None  # it is open, and has gone: a definite answer
        raise NotReadyError(f"experiment {name} is not open at the moment")

    def opening(self, _name: str) -> Awaitable[None] | None:
        return self._opened if self._opens else None

    def end(self, *, found: bool) -> None:
        self.found = found
        self._opened.set_result(None)


def call(experiments: Experiments) -> asyncio.Future[Any]:
    reply = ReportService(experiments).handle("/v1/digits/report", BODY)
    assert inspect.isawaitable(reply)
    return asyncio.ensure_future(reply)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize(("found", "status"), [(True, 404), (False, 503)])
def test_calls_are_answered_when_the_opening_has_ended(found: bool, status: int) -> None:
    async def scenario() -> None:
        experiments = Experiments()
        calls = [call(experiments), call(experiments)]
        await asyncio.sleep(0)
        assert experiments.looks == 2
        assert not any(each.done() for each in calls)
        experiments.end(found=found)
        assert [status_ for status_, _ in await asyncio.gather(*calls)] == [status, status]
        assert experiments.looks == 4, "each looks once more"

    run(scenario)


def test_a_caller_that_leaves_ends_the_wait_of_no_other() -> None:
    async def scenario() -> None:
        experiments = Experiments()
        leaves, stays = call(experiments), call(experiments)
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.sleep(0)
        experiments.end(found=True)
        assert (await stays)[0] == 404

    run(scenario)


def test_a_call_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "OPENING_S", 0.01)

    async def scenario() -> None:
        assert (await call(Experiments()))[0] == 503

    run(scenario)


def test_a_call_is_refused_at_once_where_nothing_is_opened() -> None:
    async def scenario() -> None:
        reply = ReportService(Experiments(opens=False)).handle("/v1/digits/report", BODY)
        assert isinstance(reply, tuple)
        assert reply[0] == 503

    run(scenario)
