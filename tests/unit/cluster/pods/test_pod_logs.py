"""What pods printed, each part once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trialpod.protocol.output import attempt_mark
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.logs import PodLogs


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

    async def _pod_log(self, *_given: Any) -> str:
        return self.printed

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
