"""What a reconcile pass costs depends on what happened since the one before, not on how many attempts there are."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from cluster_world import Play, World
from virtual_time import until

from python_steps import count
from trialpod_operator.cluster.pods import attention
from trialpod_operator.cluster.pods.attention import Attention, Look
from trialpod_operator.cluster.pods.bindings import PodBindings


def run_at_once(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("the pass had something to wait for")


class TestPass:
    @pytest.fixture
    def sweeps(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        found: list[bool] = []
        take = Attention.take

        def noted(self: Attention, *args: Any, **kwargs: Any) -> Look:
            look = take(self, *args, **kwargs)
            found.append(look.sweeps)
            return look

        monkeypatch.setattr(Attention, "take", noted)
        return found

    @pytest.fixture
    def passes(self, monkeypatch: pytest.MonkeyPatch) -> list[PodBindings]:
        found: list[PodBindings] = []
        reconcile = PodBindings.reconcile

        async def noted(self: PodBindings) -> float | None:
            found[:] = [self]
            return await reconcile(self)

        monkeypatch.setattr(PodBindings, "reconcile", noted)
        monkeypatch.setattr(attention, "MAX_FEW", 0)
        return found

    def test_costs_the_same_with_4_and_24_attempts(self, play: Play, passes: list[PodBindings]) -> None:
        found: dict[int, int] = {}

        def scenario_of(attempts: int) -> Any:
            async def scenario(world: World) -> None:
                world.pods.behaviour.steps, world.pods.behaviour.step_s = 12, 3.0
                await world.apply(numSamples=attempts, maxConcurrentTrials=attempts)
                await world.until_running(attempts)
                (bindings,) = passes
                await bindings.reconcile()
                pod = world.api.all("pods")[0]
                bindings.pod_changed(pod["metadata"]["labels"]["trialpod.dev/trial-id"], pod["metadata"]["name"])
                found[attempts] = count(lambda: run_at_once(bindings.reconcile()))
                world.pods.behaviour.steps = 1

            return scenario

        for attempts in (4, 24):
            play(scenario_of(attempts))
        assert found[24] <= found[4] + 10

    def test_ends_and_removals_need_no_sweep(self, play: Play, passes: list[PodBindings], sweeps: list[bool]) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.step_s = 12, 20.0
            await world.apply(numSamples=12, maxConcurrentTrials=8)
            await world.until_running(8)
            await asyncio.sleep(11.0)  # the sweep after the attempts without their work, and no other
            sweeps.clear()
            (bindings,) = passes
            pod = world.api.all("pods")[0]
            name = pod["metadata"]["name"]
            world.pods.kill(pod)
            await until(lambda: name not in {each["metadata"]["name"] for each in world.api.all("pods")})
            await until(lambda: len(world.pods.live()) == 8)
            assert bindings is passes[0]
            assert not any(sweeps)

        play(scenario)


def test_attention_looks_at_what_was_noted_until_a_sweep_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_FEW", 1)
    watched, bindings = Attention(), dict.fromkeys(["a", "b", "c"])
    assert watched.take(bindings, 10.0, every=False).sweeps  # type: ignore[arg-type]  # only their ids count
    watched.add("b")
    watched.add("gone")
    look = watched.take(bindings, 11.0, every=False)  # type: ignore[arg-type]
    assert (look.sweeps, look.among({"a", "b", "gone"})) == (False, {"b", "gone"})
    assert watched.take(bindings, 11.0, every=False).among({"a", "b"}) == set()  # type: ignore[arg-type]
    watched.sweep_by(13.0)
    watched.remove_by(12.0)
    assert not watched.take(bindings, 12.0, every=False).sweeps  # type: ignore[arg-type]
    assert watched.take(bindings, 13.0, every=False).sweeps  # type: ignore[arg-type]
    assert not watched.take(bindings, 14.0, every=False).sweeps  # type: ignore[arg-type]
    assert watched.take(bindings, 14.0, every=True).sweeps  # type: ignore[arg-type]


def test_pods_are_removed_in_passes_that_do_not_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_FEW", 1)
    watched, bindings = Attention(), dict.fromkeys(["a", "b", "c"])
    assert watched.take(bindings, 10.0, every=False).removes  # type: ignore[arg-type]  # a sweep always does
    watched.record_removal(11.0, 10_000)
    assert watched.due_at == 11.0 + 10_000 * attention.REMOVAL_S_PER_ATTEMPT
    look = watched.take(bindings, 14.9, every=False)  # type: ignore[arg-type]
    assert not look.removes
    look = watched.take(bindings, 15.0, every=False)  # type: ignore[arg-type]
    assert (look.removes, look.sweeps, look.bindings) == (True, False, [])
    assert not watched.take(bindings, 16.0, every=False).removes  # type: ignore[arg-type]


def test_few_attempts_are_looked_at_in_each_pass() -> None:
    watched = Attention()
    for _ in range(3):
        assert watched.take({}, 1.0, every=False).sweeps
