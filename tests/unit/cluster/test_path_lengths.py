"""How many of trialpod's files take part in what users wait for: the paths stay short enough to read.

Counted are the files of which a function is called. Every task of the operator counts, also one that only happens to
run meanwhile: the numbers are upper bounds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import virtual_time
from cluster_world import Play, World

import trialpod
import trialpod_operator

ROOTS = tuple(str(Path(package.__file__ or "").parent) + os.sep for package in (trialpod, trialpod_operator))
MAX_HOT = 45
"""Of a report, until the event is in the journal and the engine has answered."""

MAX_REPORT = 82
"""Of a report, until the TuneTrial's status shows it: with a commit to the storage and one reconcile pass."""

MAX_FIRST_POD = 123
"""Of a TuneExperiment, until its first pod is created: with validation, the opening of the storage, one pass."""


@pytest.fixture(autouse=True)
def no_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier test of this process may have imported the alias, which is then asked whether it is in use."""
    monkeypatch.delitem(sys.modules, "trialpod.compat.ray", raising=False)


@contextmanager
def files_called() -> Iterator[set[str]]:
    """Collect the files of trialpod in which a function is called."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            found.update([code.co_filename] if code.co_filename.startswith(ROOTS) else [])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_report_until_its_status_is_written(play: Play, record_property: Callable[[str, object], None]) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.step_s = 60.0
        await world.apply(numSamples=1)
        await world.until_running()
        await asyncio.sleep(20.0)
        service = world.operator.service
        handle, found, hot = service.handle, set[str](), set[str]()

        def version() -> str:
            return str(world.trials()[0]["metadata"]["resourceVersion"])

        before, ended = version(), asyncio.Event()

        async def watch() -> None:
            with files_called() as called:
                await virtual_time.until(lambda: version() != before, 30.0)
            found.update(called)
            ended.set()

        def noted(path: str, body: bytes, caller: Any) -> Any:
            if path.endswith("/report") and "task" not in tasks:
                tasks["task"] = asyncio.ensure_future(watch())
            with files_called() as called:
                reply = handle(path, body, caller)
            found.update(called)
            hot.update(called)
            return reply

        tasks: dict[str, asyncio.Future[None]] = {}
        service.handle = noted  # type: ignore[method-assign]
        await asyncio.wait_for(ended.wait(), 120.0)
        record_property("hot", len(hot))
        record_property("report", len(found))
        assert 0 < len(hot) <= MAX_HOT, "\n".join([str(len(hot)), *sorted(hot)])
        assert 0 < len(found) <= MAX_REPORT, "\n".join([str(len(found)), *sorted(found)])

    play(scenario)


def test_manifest_until_the_first_pod(play: Play, record_property: Callable[[str, object], None]) -> None:
    async def scenario(world: World) -> None:
        with files_called() as found:
            await world.apply(numSamples=1)
            await virtual_time.until(lambda: bool(world.api.all("pods")), 60.0)
        record_property("first_pod", len(found))
        assert 0 < len(found) <= MAX_FIRST_POD, "\n".join([str(len(found)), *sorted(found)])

    play(scenario)
