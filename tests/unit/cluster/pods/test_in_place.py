"""Pods that ask for their trial's next attempt: what they are told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_time import run

from trialpod_operator.cluster.pods.binding import PodBinding
from trialpod_operator.cluster.pods.reuse import InPlaceReservations


def attempt() -> PodBinding:
    trial: Any = SimpleNamespace(trial_id="d75de_00002")
    return PodBinding(trial, attempt=3, pod_attempt=2)


def test_a_question_that_comes_twice_has_one_answer() -> None:
    """The answer to one of them may get lost; the other one must not send the pod away."""

    async def ask_twice() -> None:
        in_place, given = InPlaceReservations(lambda: 0.0), attempt()
        asked = [asyncio.ensure_future(in_place.wait("d75de_00002", 2)) for _ in range(2)]
        await asyncio.sleep(0)
        in_place.started(given)
        assert await asyncio.gather(*asked) == [given, given]

    run(ask_twice)


def test_unanswered_reuse_requests_all_get_a_timeout() -> None:
    async def ask_twice() -> None:
        in_place, given = InPlaceReservations(lambda: 0.0), attempt()
        in_place.reserve(given)
        asked = [asyncio.ensure_future(in_place.wait("d75de_00002", 2)) for _ in range(2)]
        assert await asyncio.gather(*asked) == [None, None]
        assert in_place.take("d75de_00002", None) is None

    run(ask_twice)


def test_an_attempt_that_starts_at_the_last_moment_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod counts as bound to it: sent away, the attempt would wait for it without end."""

    async def ask() -> None:
        in_place, given = InPlaceReservations(lambda: 0.0), attempt()

        async def late(waiting: asyncio.Future[PodBinding | None], _seconds: float) -> None:
            in_place.started(given)
            raise TimeoutError

        monkeypatch.setattr(asyncio, "wait_for", late)
        assert await in_place.wait("d75de_00002", 2) is given

    run(ask)
