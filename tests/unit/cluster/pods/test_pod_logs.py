"""What pods printed, each part once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trialpod.protocol.output import attempt_mark
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.logs import LAST_LINES, MAX_LOG_BYTES, PodLogs, joined


class Cluster:
    """One pod, and the logs of its trials."""

    def __init__(self) -> None:
        self.cache = ObjectCache()
        self.printed = ""
        self.kept: dict[str, str] = {}
        kube: Any = SimpleNamespace(pod_log=self._pod_log)
        files: Any = SimpleNamespace(keep_log=self._keep_log, log_stored=lambda _trial: True)
        self.logs = PodLogs("team", "team/digits", kube, self.cache, lambda: 0.0, files)
        attempt = SimpleNamespace(started_at=0.0)
        self.trials: Any = {name: SimpleNamespace(trial_id=name, attempt=1, current=attempt) for name in ("t0", "t1")}

    async def _pod_log(
        self, _namespace: str, _name: str, _container: str, limit_bytes: int, _since: str, last_lines: int
    ) -> str:
        lines = self.printed.splitlines(keepends=True)
        return "".join(lines[-last_lines:]).encode()[:limit_bytes].decode(errors="replace")

    def _keep_log(self, trial: Any, text: str, *, once: bool = False) -> None:
        assert not once
        self.kept[trial.trial_id] = self.kept.get(trial.trial_id, "") + text

    def show(self, trial_id: str, phase: str, **annotations: str) -> dict[str, Any]:
        labels = {
            "trialpod.dev/experiment": "digits",
            "trialpod.dev/trial-id": trial_id,
            "trialpod.dev/attempt": "1",
        }
        metadata = {
            "name": "digits-t0-1",
            "namespace": "team",
            "uid": "uid",
            "labels": labels,
            "annotations": annotations,
        }
        pod = {"metadata": metadata, "spec": {}, "status": {"phase": phase}}
        self.cache.update_pod(pod, deleted=False)
        return pod


class TestPodsThatContinueAfterTheirLastRead:
    """Work came for them while their log was on its way, for the last time, as it seemed."""

    def test_a_reused_one_is_read_again(self) -> None:
        async def test() -> None:
            world = Cluster()
            world.printed = attempt_mark("t0", 1) + "first\n"
            pod = world.show("t0", "Running", **{"trialpod.dev/made-for": "t0/1"})
            assert await world.logs.keep(pod, world.trials)
            world.logs.reopen(pod)
            world.printed += attempt_mark("t1", 1) + "second\n"
            pod = world.show("t1", "Succeeded", **{"trialpod.dev/made-for": "t0/1"})
            assert await world.logs.keep(pod, world.trials)
            assert {name: text.split("\n")[-2] for name, text in world.kept.items()} == {
                "t0": "first",
                "t1": "second",
            }
            assert all(text.count("trialpod: trial") == 1 for text in world.kept.values())

        asyncio.run(test())

    @pytest.mark.parametrize("printed", ["", "first\n"])
    def test_one_of_the_same_trial_is_read_again(self, printed: str) -> None:
        async def test() -> None:
            world = Cluster()
            world.printed = printed
            assert await world.logs.keep(world.show("t0", "Running"), world.trials)
            world.logs.reopen(world.show("t0", "Running"))
            world.printed += "second\n"
            for _ in range(2):
                assert await world.logs.keep(world.show("t0", "Succeeded"), world.trials)
            assert world.kept == {"t0": f"{printed}second\n"}

        asyncio.run(test())


class TestLongOutput:
    """More than the API server is asked for."""

    PROGRESS = "".join(f"batch {each:07d} loss=0.5 \N{WHITE SMALL SQUARE}\n" for each in range(MAX_LOG_BYTES // 20))
    TRACEBACK = "Traceback (most recent call last):\nValueError: a bad batch\n"

    @pytest.mark.parametrize("early", [False, True], ids=["read-once", "read-before-the-end"])
    @pytest.mark.parametrize(
        "made_for", ["", "t0/1", "t1/1"], ids=["own-pod", "reused-pod-first", "reused-pod-later"]
    )
    def test_its_beginning_and_its_end_are_kept(self, early: bool, made_for: str) -> None:
        async def test() -> None:
            world = Cluster()
            mark = attempt_mark("t0", 1) if made_for else ""
            world.printed = mark + self.PROGRESS
            made = {"trialpod.dev/made-for": made_for} if made_for else {}
            if early:
                await world.logs.keep_so_far(world.show("t0", "Running", **made), world.trials)
            world.printed += self.TRACEBACK
            assert await world.logs.keep(world.show("t0", "Failed", **made), world.trials)
            kept = world.kept["t0"]
            assert kept.startswith((mark + self.PROGRESS[:1000]).lstrip("\n"))
            assert kept.endswith(self.PROGRESS[-1000:] + self.TRACEBACK)
            assert kept.count("trialpod: part of the output is left out here") == 1
            assert len(kept.encode()) < MAX_LOG_BYTES + 20_000

        asyncio.run(test())

    def test_what_fits_is_kept_once(self) -> None:
        async def test() -> None:
            world = Cluster()
            world.printed = self.PROGRESS.encode()[: MAX_LOG_BYTES - 10].decode(errors="ignore")
            assert await world.logs.keep(world.show("t0", "Failed"), world.trials)
            assert world.kept == {"t0": world.printed}

        asyncio.run(test())

    def test_an_end_that_meets_the_beginning_is_joined_to_it(self) -> None:
        lines = [f"line {number}\n" for number in range(LAST_LINES)]
        assert joined("".join(lines[:30]), "".join(lines[10:40])) == "".join(lines[:40])
        assert joined("".join(lines[:30])[:-3], "".join(lines[10:40])) == "".join(lines[:40])
        assert joined("same\n" * 9, "same\n" * 3) == "same\n" * 9
