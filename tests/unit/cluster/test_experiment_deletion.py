"""Deleted experiments: their data goes when the manifest says so, after their pods, and holds up no namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import fake_api
import pytest
from cluster_world import Play, World
from memory_storage import unavailable
from virtual_time import until

from trialpod_operator.cluster import deletion, names
from trialpod_operator.cluster import kube as paths

STORAGE = {"uri": "s3://bucket/runs", "deletionPolicy": "Delete"}
KEYS = {"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}


async def begun(world: World, **storage: Any) -> None:
    world.pods.behaviour.steps = 1000
    await world.apply(storage={**STORAGE, **storage})
    await world.until_running(3)
    await asyncio.sleep(3.0)
    assert world.storage.values


async def delete(world: World) -> None:
    await world.client.delete(paths.experiments("team"), "digits")


def test_the_data_goes_with_the_experiment_after_its_pods(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world)
        left: list[int] = []
        world.storage.before = lambda name, key: left.append(len(world.api.all("pods"))) if "delete" in name else None
        await delete(world)
        await until(lambda: not world.experiment, 60.0)
        assert world.storage.values == {}
        assert left
        assert set(left) == {0}
        await until(lambda: not world.api.all("tunetrials"))

    play(scenario)


def test_the_data_stays_unless_the_manifest_says_otherwise(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world, deletionPolicy="Retain")
        await delete(world)
        await until(lambda: not world.api.all("pods"), 60.0)
        assert not world.experiment
        assert world.storage.values

    play(scenario)


def test_a_change_of_mind_about_the_data_counts(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world)
        await world.change(storage={"deletionPolicy": "Retain"})
        await asyncio.sleep(5.0)
        await delete(world)
        await until(lambda: not world.experiment, 60.0)
        assert world.storage.values

    play(scenario)


def test_a_change_of_mind_right_before_it_counts(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world)
        await world.change(storage={"deletionPolicy": "Retain"})
        await delete(world)
        await until(lambda: not world.experiment, 60.0)
        assert world.storage.values

    play(scenario)


class TestInvalidSpec:
    """A spec that was changed to an invalid one, which the experiment does not follow."""

    def test_of_one_that_has_run_does_not_keep_the_data(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await begun(world)
            await world.change(resources={"cpus": 1})
            await until(lambda: world.condition("Stalled"), 60.0)
            await delete(world)
            await until(lambda: not world.experiment, 60.0)
            assert world.storage.values == {}

        play(scenario)

    def test_of_its_storage_is_named_and_given_up_soon(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        async def scenario(world: World) -> None:
            await begun(world)
            await world.change(storage={"credentialsSecret": "No Name"})
            await delete(world)
            await until(lambda: not world.experiment, deletion.NO_KEYS_GIVE_UP_S + 30.0)
            assert world.storage.values

        play(scenario)
        assert "the data of team/digits stays where it is" in caplog.text
        assert "spec.storage.credentialsSecret: " in caplog.text

    def test_of_one_that_never_ran_deletes_nothing(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await begun(world, deletionPolicy="Retain")
            await delete(world)
            await until(lambda: not world.experiment, 60.0)
            await world.apply(storage=STORAGE, resources={"cpus": 1})
            finalizers = {"metadata": {"finalizers": [names.STORAGE_FINALIZER]}}
            await world.client.patch(paths.experiments("team"), "digits", finalizers)
            await until(lambda: world.condition("Stalled"), 60.0)
            await delete(world)
            await until(lambda: not world.experiment, 60.0)
            assert world.storage.values

        play(scenario)


def test_silent_storage_is_retried_and_finally_given_up(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world)
        world.storage.before = unavailable
        await delete(world)
        await asyncio.sleep(deletion.GIVE_UP_S - 30.0)
        assert world.experiment
        assert world.operator.kube.requests < 300
        await until(lambda: not world.experiment, 180.0)
        assert world.storage.values

    play(scenario)


def test_an_operator_replaced_meanwhile_continues_deleting(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begun(world)
        world.storage.before = unavailable
        await delete(world)
        await asyncio.sleep(30.0)
        await world.replace_operator()
        world.storage.before = lambda name, key: None
        await until(lambda: not world.experiment, 120.0)
        assert world.storage.values == {}

    play(scenario)


def test_a_namespace_that_goes_with_its_keys_is_not_held_up(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": KEYS})
        await begun(world, credentialsSecret="keys")
        await world.client.delete(paths.secrets("team"), "keys")
        await delete(world)
        await until(lambda: not world.experiment, 60.0)
        assert world.storage.values == {}  # with the keys that were read before

    play(scenario)


def test_without_any_keys_it_is_given_up_soon(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": KEYS})
        await begun(world, credentialsSecret="keys")
        await world.client.delete(paths.secrets("team"), "keys")
        await delete(world)
        await asyncio.sleep(0.5)
        await world.replace_operator()
        await until(lambda: not world.experiment, deletion.NO_KEYS_GIVE_UP_S + 90.0)
        assert world.storage.values

    play(scenario)


class TestForbidden:
    def test_a_protected_pod_keeps_no_other_one_writing(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await begun(world)
            protected: list[str] = []  # the first one that is to end

            def fault(method: str, path: str, _body: Any) -> Any:
                if method == "DELETE" and "/pods/" in path and path in (protected or [path]):
                    protected.append(path)
                    return fake_api.error(method, path, 403, "Forbidden", "protected")
                return None

            world.operator.kube.faults.append(fault)
            await delete(world)
            await until(lambda: len(world.api.all("pods")) == 1, 30.0, "the others are gone")
            assert world.storage.values
            await until(lambda: not world.experiment, deletion.PODS_GONE_S + 60.0)
            assert world.storage.values == {}

        play(scenario)

    @pytest.mark.parametrize("replaced", [False, True], ids=["keys-at-hand", "no-keys"])
    def test_secret_keeps_no_experiment(self, play: Play, replaced: bool) -> None:
        async def scenario(world: World) -> None:
            await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": KEYS})
            await begun(world, credentialsSecret="keys")

            def fault(method: str, path: str, _body: Any) -> Any:
                if "/secrets/" in path:
                    return fake_api.error(method, path, 403, "Forbidden", "secrets is forbidden")
                return None

            world.operator.kube.faults.append(fault)
            await delete(world)
            if replaced:
                await asyncio.sleep(0.5)
                await world.replace_operator()
                world.operator.kube.faults.append(fault)
            await until(lambda: not world.experiment, deletion.NO_KEYS_GIVE_UP_S + 90.0)
            assert bool(world.storage.values) is replaced

        play(scenario)


class TestDeletedBeforeItsFirstWrite:
    """An operator that was stopped for long claims a place whose experiment another one has deleted meanwhile."""

    def delete_at_claim(self, world: World, then: Callable[[], object]) -> list[str]:
        def before(name: str, key: str) -> None:
            if key.endswith("experiment.json") and "write" in name and not deleted:
                deleted.append(key)
                world.api.remove(world.experiment)
                then()

        deleted: list[str] = []
        world.storage.before = before
        return deleted

    @pytest.mark.parametrize("closed", [False, True], ids=["active", "being closed"])
    def test_operator_releases_its_claim(self, play: Play, closed: bool) -> None:
        async def scenario(world: World) -> None:
            tasks: list[asyncio.Task[Any]] = []
            replace = lambda: tasks.append(asyncio.create_task(world.replace_operator()))  # noqa: E731
            claimed = self.delete_at_claim(world, replace if closed else lambda: None)
            await world.apply(storage=STORAGE)
            await until(lambda: not world.experiment)
            await asyncio.sleep(10.0)
            await asyncio.gather(*tasks)
            assert claimed
            assert world.storage.values == {}
            assert not world.api.all("tunetrials")

        play(scenario)

    @pytest.mark.parametrize("closed", [False, True], ids=["active", "being closed"])
    def test_claim_whose_answer_was_lost_is_released(self, play: Play, closed: bool) -> None:
        """And the storage stays silent for a few seconds after it."""

        async def scenario(world: World) -> None:
            tasks: list[asyncio.Task[Any]] = []
            replace = lambda: tasks.append(asyncio.create_task(world.replace_operator()))  # noqa: E731
            claimed = self.delete_at_claim(world, replace if closed else lambda: None)
            calls: list[float] = []  # from the claim on

            def after(*_: str) -> None:
                if claimed:
                    calls.append(world.loop.now())
                    if calls[-1] - calls[0] < 3.0:
                        unavailable()

            world.storage.after = after
            await world.apply(storage=STORAGE)
            await until(lambda: not world.experiment)
            await asyncio.sleep(20.0)
            await asyncio.gather(*tasks)
            assert claimed
            assert world.storage.values == {}

        play(scenario)

    def test_new_experiment_of_that_name_keeps_it(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            tasks: list[asyncio.Task[None]] = []
            again = lambda: tasks.append(asyncio.create_task(world.apply(storage=STORAGE)))  # noqa: E731
            self.delete_at_claim(world, again)
            await world.apply(storage=STORAGE)
            await until(lambda: bool(tasks) and bool(world.experiment))
            await world.until_over()
            world.check_results()

        play(scenario)


class TestTimeToLive:
    def test_deletes_what_is_over(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(storage=STORAGE, ttlSecondsAfterFinished=3600)
            await world.until_over()
            await asyncio.sleep(3300.0)
            assert world.experiment
            await until(lambda: not world.experiment, 400.0)
            assert world.storage.values == {}

        play(scenario)

    @pytest.mark.parametrize("request_of", ["numSamples", "retry"])
    def test_spares_what_is_asked_to_continue(self, play: Play, request_of: str) -> None:
        async def scenario(world: World) -> None:
            await world.apply(storage=STORAGE, ttlSecondsAfterFinished=3600)
            await world.until_over()
            world.storage.before = unavailable
            if request_of == "numSamples":
                await world.change(numSamples=4)
            else:
                body = {"metadata": {"annotations": {"trialpod.dev/retry": "1"}}}
                await world.client.patch(paths.experiments("team"), "digits", body)
            await asyncio.sleep(7200.0)
            assert "deletionTimestamp" not in world.experiment["metadata"]
            world.storage.before = lambda name, key: None
            await until(lambda: not world.experiment, 8000.0)

        play(scenario)

    def test_spares_what_was_changed_to_something_invalid(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(storage=STORAGE, ttlSecondsAfterFinished=3600)
            await world.until_over()
            await world.change(numSamples=-4)
            await asyncio.sleep(7200.0)
            assert "deletionTimestamp" not in world.experiment["metadata"]

        play(scenario)

    def test_forgets_what_was_deleted_without_news(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(ttlSecondsAfterFinished=3600)
            await world.until_over()
            world.operator.watch.lose = lambda plural, item: plural == "tuneexperiments"
            await delete(world)
            deletions = world.api.counts["DELETE tuneexperiments"]
            await asyncio.sleep(7200.0)
            assert world.api.counts["DELETE tuneexperiments"] == deletions + 1
            assert world.operator.controller.own_experiments() == {}

        play(scenario)
