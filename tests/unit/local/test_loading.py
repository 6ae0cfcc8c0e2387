from __future__ import annotations

import asyncio

import pytest

from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.fork_server.protocol import Preloaded
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
                    preload.set_result(Preloaded())

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

    @pytest.mark.parametrize("unforkable", [True, False])
    def test_a_long_import_that_every_trial_repeats(self, unforkable: bool) -> None:
        told: list[Event] = []
        times = iter([0.0, 2.0, 3.0])

        async def run() -> None:
            preload = asyncio.get_running_loop().create_future()

            def tell(event: Event) -> None:
                told.append(event)
                if not preload.done():
                    preload.set_result(Preloaded("importing it started threads", unforkable=unforkable))

            await Loading(TrainableRef(entrypoint="train:train"), tell, lambda: next(times)).follow(preload)

        asyncio.run(run())
        said = "train: importing it started threads, so each trial imports it by itself, in about 3.0 s"
        # What else went wrong, each trial says by itself.
        assert [event.message for event in told[1:]] == ([said] if unforkable else [])
        assert all(event.level == "warning" and event.data["remedy"] for event in told[1:])

    @pytest.mark.parametrize("result", [Preloaded(), Preloaded("there are threads", unforkable=True)])
    def test_a_short_import_is_not_mentioned(self, result: Preloaded) -> None:
        told: list[Event] = []

        async def run() -> None:
            preload = asyncio.get_running_loop().create_future()
            preload.set_result(result)
            await Loading(TrainableRef(source="x"), told.append).follow(preload)

        asyncio.run(run())
        assert told == []
