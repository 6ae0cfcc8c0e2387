"""Resources that come back from a backup: other UIDs, no status, and what is stored is as it was or further."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.cluster import kube as paths


def exported(item: dict[str, Any]) -> dict[str, Any]:
    """Return what a backup tool brings back: no status, no UID; owners are those of the day of the backup."""
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "ownerReferences") if key in metadata}
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": copy.deepcopy(kept),
        "spec": copy.deepcopy(item["spec"]),
    }


async def lose_everything(world: World) -> None:
    """The namespace goes, and with it every resource and every pod, at once."""
    await world.client.delete(paths.experiments("team"), "digits")
    for item in [*world.api.all("pods"), *world.api.all("tunetrials")]:
        world.api.remove(item)
    await until(lambda: not world.api.all("tuneexperiments"), what="the experiment is gone")
    await until(lambda: not world.api.all("tunetrials"), what="its trials are gone")


@pytest.mark.parametrize("with_trials", [False, True], ids=["experiments alone", "with their trials"])
def test_finished_trials_stay_and_running_ones_continue(play: Play, with_trials: bool) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 8
        await world.apply(numSamples=6, maxConcurrentTrials=2)
        await until(lambda: world.states().count("TERMINATED") >= 2, 600.0, "some trials are over")
        await asyncio.sleep(2.0)
        experiment = exported(world.experiment)
        trials = [exported(each) for each in world.trials()]
        over = {
            each["spec"]["trialId"]
            for each in world.trials()
            if (each.get("status") or {}).get("state") == "TERMINATED"
        }
        before = {trial_id: lines for trial_id, lines in world.results().items() if trial_id in over}
        pods_before = world.api.counts["POST pods"]
        await lose_everything(world)
        await world.replace_operator(20.0)
        if with_trials:
            for trial in trials:
                await world.client.create(paths.trials("team"), trial)
        await world.client.create(paths.experiments("team"), experiment)
        status = await world.until_over()
        assert status["trials"]["terminated"] == 6
        # Finished trials are in the status and the storage; no resources are made for them again.
        assert set(world.states()) == {"TERMINATED"}
        assert len(world.states()) >= 6 - len(over)
        assert {trial_id: world.results()[trial_id] for trial_id in over} == before
        assert status["failures"] == 0
        # Those that ran and those that had not begun, each once.
        assert world.api.counts["POST pods"] - pods_before <= 6 - len(over) + int(with_trials) * 6
        world.check_results()

    play(scenario)


def test_restored_finished_experiment_creates_no_pods(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        before = await world.until_over()
        experiment = exported(world.experiment)
        pods_before = world.api.counts["POST pods"]
        await lose_everything(world)
        await world.replace_operator(5.0)
        await world.client.create(paths.experiments("team"), experiment)
        status = await world.until_over()
        assert world.api.counts["POST pods"] == pods_before
        assert status["best"] == before["best"]
        assert status["trials"] == before["trials"]
        assert status["message"] == before["message"]

    play(scenario)
