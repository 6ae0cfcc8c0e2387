from __future__ import annotations

import asyncio

import pytest

from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import TrainableRef
from trialpod_operator.display.events import Event
from trialpod_operator.local import loading
from trialpod_operator.local.loading import Loading


class TestLoading:
    @pytest.fixture(autouse=True)
    def _no_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "FIRST_S", 0.001)
        monkeypatch.setattr(loading, "INTERVAL_S", 0.001)

    def test_a_long_import_is_reported_with_its_time(self) -> None:
        told: list[Event] = []
        time = 0.0
        messages: list[str] = []

        async def run() -> None:
            nonlocal time
            preload = asyncio.get_running_loop().create_future()

            def tell(event: Event) -> None:
                nonlocal time
                told.append(event)
                messages.append(seen.message)
                time += 4.0
                if len(told) == 2:
                    preload.set_result("")

            seen = Loading(TrainableRef(entrypoint="train:Trainable"), tell, lambda: time)
            time = 1.0
            await seen.follow(preload)
            messages.append(seen.message)

        asyncio.run(run())
        assert [event.message for event in told] == [
            "importing train, 1 s",
            "importing train, 5 s",
            "imported train in 9.0 s",
        ]
        assert messages == ["importing train, 1 s", "importing train, 5 s", "", ""]

    def test_a_program_is_not_said_to_be_imported(self) -> None:
        times = iter([0.0, 2.0])
        ref = TrainableRef(command=CommandSpec(command=["./program"]))
        assert Loading(ref, lambda _event: None, lambda: next(times)).message == "importing trialpod, 2 s"

    @pytest.mark.parametrize("result", ["", "there are threads"])
    def test_a_short_import_is_not_mentioned(self, result: str) -> None:
        told: list[Event] = []

        async def run() -> None:
            preload = asyncio.get_running_loop().create_future()
            preload.set_result(result)
            await Loading(TrainableRef(source="x"), told.append).follow(preload)

        asyncio.run(run())
        assert told == []
