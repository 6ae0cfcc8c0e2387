"""Pods that are over: several go together, and none stays for that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import virtual_time
from virtual_time import until

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.garbage_collector import (
    GATHER_S,
    LEAVE_S,
    LOG_AGAIN_S,
    MAX_BATCH,
    REFUSED_AGAIN_S,
    PodGarbageCollector,
)
from trialpod_operator.cluster.pods.pod_work import PodWork

KEY = "team/digits"


class Work:
    """Takes down what is deleted together; `takes` = the server has answered."""

    takes: asyncio.Event | None = None
    stuck: frozenset[str] = frozenset()  # names of pods whose deletion fails, or whose log cannot be had
    error: Exception | None = None  # raised for those

    def __init__(self) -> None:
        self.deleted: set[str] = set()
        self.ended_running: set[str] = set()
        self.batches: list[list[str]] = []
        self.asked_to_stay = 0
        self.steps: list[tuple[str, str]] = []  # what was done with pods that run
        self.logs = SimpleNamespace(
            keep=lambda pod, _trials: self._step("keep", pod, True),
            keep_so_far=lambda pod, _trials: self._step("keep so far", pod, None),
            reopen=lambda pod: self.steps.append(("reopen", pod["metadata"]["name"])),
        )

    def forget_deleted(self) -> None:
        """Nothing is forgotten here."""

    async def _step(self, what: str, pod: dict[str, Any], result: bool | None) -> bool | None:
        self.steps.append((what, pod["metadata"]["name"]))
        return result

    async def delete_if_allowed(self, pod: dict[str, Any], _grace_s: int | None = None) -> bool:
        if pod["metadata"]["name"] in self.stuck:
            return False
        await self._step("delete", pod, None)
        self.deleted.add(pod["metadata"]["uid"])
        if pod["status"]["phase"] == "Running":
            self.ended_running.add(pod["metadata"]["uid"])
        return True

    async def collect_finished(self, pods: list[dict[str, Any]], _trials: object) -> list[dict[str, Any]]:
        if self.takes is not None:
            await self.takes.wait()
        self.batches.append([pod["metadata"]["name"] for pod in pods])
        done = [pod for pod in pods if pod["metadata"]["name"] not in self.stuck]
        self.deleted |= {pod["metadata"]["uid"] for pod in done}
        if len(done) < len(pods) and self.error is not None:
            raise self.error
        return done

    def stays(self, pod: dict[str, Any]) -> bool:
        self.asked_to_stay += 1
        return bool(pod["metadata"].get("annotations"))


class World:
    def __init__(self) -> None:
        self.work, self.cache = Work(), ObjectCache()
        self.asked = 0
        self.now = 0.0
        work = cast(PodWork, self.work)
        self.collector = PodGarbageCollector(KEY, work, self.cache, lambda: self.now, self._again)

    def _again(self) -> None:
        self.asked += 1

    def finish(self, *names: str, phase: str = "Succeeded", **more: Any) -> None:
        for name in names:
            metadata = {
                "name": name,
                "namespace": "team",
                "uid": name,
                "labels": {"trialpod.dev/experiment": "digits"},
                **more,
            }
            self.cache.update_pod({"metadata": metadata, "spec": {}, "status": {"phase": phase}}, deleted=False)

    def look(self, now: float, *current: str, stopped: tuple[str, ...] = (), every: bool = True) -> list[list[str]]:
        self.now = now

        async def one() -> None:
            await self.collector.collect(now, current, stopped, lambda _: False, {}, every=every)
            await asyncio.sleep(0)  # what is done beside the passes

        asyncio.run(one())
        return self.work.batches


def test_pods_that_finish_in_sequence_are_deleted_together() -> None:
    world = World()
    world.finish("one")
    assert world.look(100.0, "other") == []
    assert 100.0 + GATHER_S in world.collector.times()
    world.finish("two")
    assert world.look(100.0 + GATHER_S / 2, "other") == []
    assert world.look(100.0 + GATHER_S, "other") == [["one", "two"]]


def test_the_last_pods_of_an_experiment_wait_for_nothing() -> None:
    world = World()
    world.finish("one")
    assert world.look(100.0) == [["one"]]


def test_many_are_deleted_at_once_and_not_all_in_one_look() -> None:
    world = World()
    world.finish(*(f"pod-{number:02d}" for number in range(MAX_BATCH + 3)))
    (first,) = world.look(100.0, "other")
    assert len(first) == MAX_BATCH
    assert world.asked == 1  # and the rest at once
    assert world.look(100.1) == [first, ["pod-16", "pod-17", "pod-18"]]


def test_passes_do_not_wait_for_the_logs_of_finished_pods() -> None:
    async def test() -> None:
        world = World()
        world.work.takes = asyncio.Event()
        world.finish(*(f"pod-{number:02d}" for number in range(MAX_BATCH)))
        for now in (100.0, 110.0, 120.0):
            await world.collector.collect(now, ["other"], (), lambda _: False, {}, every=True)
            await asyncio.sleep(0)
        assert world.work.batches == []
        assert world.collector.pods_left
        world.work.takes.set()
        await until(lambda: world.asked == 1)
        assert [len(batch) for batch in world.work.batches] == [MAX_BATCH], "one task at a time"

    virtual_time.run(test)


def test_nothing_is_taken_away_once_it_is_closed() -> None:
    async def test() -> None:
        world = World()
        world.work.takes = asyncio.Event()
        world.finish(*(f"pod-{number:02d}" for number in range(MAX_BATCH)))
        await world.collector.collect(100.0, ["other"], (), lambda _: False, {}, every=True)
        await asyncio.sleep(0)
        await world.collector.close()
        world.work.takes.set()
        await asyncio.sleep(0)
        assert world.work.batches == []
        assert world.asked == 0

    asyncio.run(test())


class TestPodsThatCannotBeDeletedYet:
    """They hold up no other: a node's logs may be out of reach for a minute, a webhook may always refuse."""

    PODS = tuple(f"pod-{number:02d}" for number in range(3 * MAX_BATCH))

    def _world(self, *, current: str, error: Exception | None = None) -> World:
        world = World()
        world.work.stuck, world.work.error = frozenset(self.PODS[:MAX_BATCH]), error
        world.finish(*self.PODS)
        for now in (100.0, 100.1, 100.2):
            world.look(now, *filter(None, [current]))
        return world

    @pytest.mark.parametrize("current", ["other", ""])
    def test_logs_that_are_out_of_reach_delay_no_other(self, current: str) -> None:
        world = self._world(current=current)
        assert world.work.deleted == set(self.PODS[MAX_BATCH:])
        assert min(world.collector.times()) == 100.0 + LOG_AGAIN_S

    @pytest.mark.parametrize("current", ["other", ""])
    def test_refused_deletions_delay_no_other(self, current: str) -> None:
        error = ApiError("DELETE", "pods", 403, {"message": "refused by a webhook"})
        assert self._world(current=current, error=error).work.deleted == set(self.PODS[MAX_BATCH:])

    def test_they_are_retried_after_those_not_tried_yet(self) -> None:
        world = self._world(current="other")
        world.finish(*(f"new-{number:02d}" for number in range(MAX_BATCH)))
        world.look(102.0, "other")
        assert {name[:3] for name in world.work.batches[-1]} == {"new"}
        world.work.stuck = frozenset()
        world.look(102.1, "other")
        assert world.work.deleted >= set(self.PODS)

    def test_one_that_still_runs_delays_no_other(self) -> None:
        world = World()
        world.work.stuck = frozenset({"hung-1"})
        world.finish("hung-1", "hung-2", phase="Running")
        world.look(100.0, stopped=("hung-1", "hung-2"))
        assert world.work.deleted == {"hung-2"}
        assert world.collector.times() == [100.0 + REFUSED_AGAIN_S]
        world.work.stuck = frozenset()
        world.look(101.0, stopped=("hung-1", "hung-2"))
        assert world.work.deleted == {"hung-2"}
        world.look(100.0 + REFUSED_AGAIN_S, stopped=("hung-1", "hung-2"))
        assert world.work.deleted == {"hung-1", "hung-2"}

    def test_a_defect_leaves_a_log_and_is_retried(self, caplog: pytest.LogCaptureFixture) -> None:
        world = self._world(current="other", error=KeyError("label"))
        assert world.asked == 3
        assert "cannot be deleted" in caplog.text
        assert world.work.deleted == set(self.PODS[MAX_BATCH:])


class TestLogsOfPodsThatRun:
    def test_one_that_does_not_stop_is_read_before_and_after(self) -> None:
        world = World()
        world.finish("hung", phase="Running")
        world.look(100.0, stopped=("hung",))
        world.look(101.0, stopped=("hung",))
        assert world.work.steps == [("keep so far", "hung"), ("delete", "hung")]
        world.finish("hung", phase="Failed")
        world.look(102.0)
        assert world.work.steps[2:] == [("keep", "hung")]

    def test_one_that_does_not_exit_is_read_before_it_is_deleted(self) -> None:
        world = World()
        world.finish("sidecar", phase="Running")
        world.look(100.0)
        assert world.work.steps == []
        world.look(100.0 + LEAVE_S)
        assert world.work.steps == [("keep", "sidecar"), ("delete", "sidecar")]

    def test_one_that_gets_work_meanwhile_is_read_on(self) -> None:
        world = World()
        world.finish("idle", phase="Running")
        world.collector.expect_exit("idle", 100.0)
        collect = world.collector.collect(
            100.0 + LEAVE_S, (), (), lambda _pod: bool(world.work.steps), {}, every=True
        )
        asyncio.run(collect)
        assert world.work.steps == [("keep", "idle"), ("reopen", "idle")]

    def test_one_that_is_reserved_later_is_read_on_too(self) -> None:
        """Its deletion was refused, so it could still get work."""
        world = World()
        world.work.stuck = frozenset({"idle"})
        world.finish("idle", phase="Running")
        world.collector.expect_exit("idle", 100.0)
        world.look(100.0 + LEAVE_S)
        world.collector.keep("idle")
        assert world.work.steps == [("keep", "idle"), ("reopen", "idle")]

    def test_one_that_does_not_run_yet_has_none(self) -> None:
        world = World()
        world.finish("waits", phase="Pending")
        world.look(100.0, stopped=("waits",))
        world.look(101.0)
        assert world.work.steps == [("delete", "waits")]

    def test_finished_ones_are_read_once(self) -> None:
        world = World()
        world.finish("one")
        world.look(100.0)
        world.look(101.0)
        assert world.work.steps == []


class TestNotedPods:
    """Between two sweeps only those pods are considered that were noted."""

    def test_one_that_stays_is_not_considered_again(self) -> None:
        world = World()
        world.finish("pod-1", annotations={"trialpod.dev/log-kept": "true"})
        world.collector.note("pod-1")
        world.look(0.0, "current", every=False)
        asked = world.work.asked_to_stay
        world.look(1.0, "current", every=False)
        assert (asked, world.work.asked_to_stay) == (1, 1)

    def test_one_that_was_not_noted_is_left_to_a_sweep(self) -> None:
        world = World()
        world.finish("pod-1", "pod-2")
        world.collector.note("pod-2")
        assert world.look(0.0, every=False) == [["pod-2"]]
        assert world.look(1.0, every=True) == [["pod-2"], ["pod-1"]]

    def test_one_stays_noted_until_it_is_deleted(self) -> None:
        world = World()
        world.finish("pod-1")
        world.collector.expect_exit("pod-1", 0.0)
        assert world.look(0.0, "current", every=False) == []
        assert world.look(GATHER_S, "current", every=False) == [["pod-1"]]

    def test_one_that_does_not_exit_is_deleted_in_time(self) -> None:
        world = World()
        world.finish("pod-1", phase="Running")
        world.collector.expect_exit("pod-1", 0.0)
        world.look(1.0, "current", every=False)
        assert (world.work.steps, world.collector.times()) == ([], [LEAVE_S])
        world.look(LEAVE_S, "current", every=False)
        assert world.work.steps == [("keep", "pod-1"), ("delete", "pod-1")]

    def test_one_that_continues_is_not_considered_again(self) -> None:
        world = World()
        world.finish("pod-1", phase="Running")
        world.collector.note("pod-1")
        world.look(0.0, "pod-1", every=False)
        world.look(LEAVE_S, every=False)
        world.look(2 * LEAVE_S, every=False)
        assert world.work.steps == []

    def test_one_that_is_gone_is_waited_for_no_more(self) -> None:
        world = World()
        world.collector.expect_exit("pod-1", 0.0)
        world.look(1.0, every=False)
        assert world.collector.times() == []
