"""The operator against an API server and pods in memory: replaced operators, lost news, refusals, users' changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import fake_api
import pytest
import virtual_time
from cluster_world import Play, World
from memory_storage import unavailable
from virtual_time import until

from trialpod_operator.cluster import experiment_controller
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods.bindings import PodBindings

pytestmark = pytest.mark.once


def test_trials_run_and_end_and_nothing_is_left_of_their_pods(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        status = await world.until_over()
        assert status["trials"]["terminated"] == 3
        assert world.states() == ["TERMINATED"] * 3
        assert {trial_id: len(lines) for trial_id, lines in world.results().items()} == dict.fromkeys(
            world.results(), 5
        )
        assert all("step 5" in text for text in world.files("log.txt").values())
        assert len(world.files("log.txt")) == 3
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("away_s", [0.0, 4.0])
def test_an_operator_replaced_at_any_moment_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, away_s: float
) -> None:

    for tenths in range(1, 120, 5):

        async def test(tenths: int = tenths) -> None:
            world = World(monkeypatch, tmp_path, tenths)
            world.start_operator()
            await world.apply(numSamples=2)
            await asyncio.sleep(tenths / 10)
            await world.replace_operator(away_s)
            status = await world.until_over()
            assert status["trials"]["terminated"] == 2, tenths
            assert (status["failures"], status["disruptions"]) == (0, 0), tenths
            assert world.states() == ["TERMINATED"] * 2, tenths
            assert [len(lines) for lines in world.results().values()] == [5, 5], tenths
            assert [text.count("step") for text in world.files("log.txt").values()] == [5, 5], tenths
            world.check_results()
            await world.close()

        virtual_time.run(test)


def test_trials_finish_despite_repeated_operator_restarts(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 30
        await world.apply()
        for _ in range(12):
            await asyncio.sleep(world.random.uniform(0.5, 5.0))
            await world.replace_operator(world.random.uniform(0.0, 3.0))
        assert (await world.until_over())["trials"]["terminated"] == 3
        assert len(world.pods.begun) == 3
        world.check_results()

    play(scenario)


def test_pod_ended_without_operator_is_classified_right(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 1})
        await world.until_running()
        await asyncio.sleep(1.0)
        world.pods.service = None
        await world.operator.close()
        world.pods.kill(world.pods.live()[0])
        await asyncio.sleep(1.0)
        world.start_operator()
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (1, 0)
        assert world.states() == ["TERMINATED"]
        world.check_results()

    play(scenario)


def test_an_operator_that_was_away_at_the_end_keeps_the_logs(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply()

        def refuse(method: str, path: str, _body: object) -> object:
            return fake_api.error(method, path, 500, "InternalError") if path.endswith("/log") else None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await until(lambda: world.states() == ["TERMINATED"] * 3)
        await asyncio.sleep(3.0)
        assert world.api.all("pods")
        await world.replace_operator()
        await world.until_over()
        assert [text.count("step") for text in world.files("log.txt").values()] == [5, 5, 5]

    play(scenario)


@pytest.mark.parametrize(
    ("label", "value"),
    [("attempt", "x"), ("attempt", None), ("trial-id", "x"), ("trial-id", None), ("experiment", None)],
)
def test_pod_whose_label_a_user_has_changed_is_deleted(play: Play, label: str, value: str | None) -> None:
    def change(pod: dict[str, Any]) -> None:
        labels = pod["metadata"]["labels"]
        del labels[f"trialpod.dev/{label}"]
        labels |= {} if value is None else {f"trialpod.dev/{label}": value}

    async def scenario(world: World) -> None:
        def refuse(method: str, path: str, _body: object) -> object:
            return fake_api.error(method, path, 500, "InternalError") if path.endswith("/log") else None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply(numSamples=2, maxConcurrentTrials=1)
        await until(lambda: len(world.pods.begun) == 2)
        ended = next(pod for pod in world.api.all("pods") if pod["status"]["phase"] == "Succeeded")
        world.api.edit(ended, change)
        world.operator.kube.faults.clear()
        await world.until_over()
        assert world.operator.errors == []

    play(scenario)


def test_a_pod_without_its_experiment_label_is_followed(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 50
        await world.apply(numSamples=1)
        await world.until_running()
        (pod,) = world.pods.live()
        pod = world.api.edit(pod, lambda each: each["metadata"]["labels"].pop("trialpod.dev/experiment"))
        await asyncio.sleep(1.0)
        world.pods.kill(pod)
        status = await world.until_over()
        assert (status["failures"], world.states()) == (1, ["ERROR"])
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("hangs_s", [20.0, 1000.0])
def test_a_log_that_takes_long_holds_up_nothing_else(play: Play, reuse: bool, hangs_s: float) -> None:
    async def scenario(world: World) -> None:
        operator = world.operator
        request = operator.kube.request
        until_s = world.loop.time() + hangs_s

        async def hanging(method: str, path: str, **more: Any) -> Any:
            if path.endswith("/log") and "-00000-" in path and world.loop.time() < until_s:
                await asyncio.sleep(15.0)
                raise fake_api.error(method, path, 0, "Unreachable", "no answer within 15 s")
            return await request(method, path, **more)

        operator.kube.request = hanging  # type: ignore[method-assign]
        world.pods.behaviour.steps = 5
        await world.apply(numSamples=6, maxConcurrentTrials=2, reusePods=reuse)
        status = await world.until_over()
        assert status["trials"]["terminated"] == 6
        assert operator.controller.queue.longest_pass_s < 2.0
        logs = world.files("log.txt")
        kept = [logs.get(trial["spec"]["trialId"], "").count("step") for trial in world.trials()]
        assert kept[-1] == 5 or reuse, "its pod is one that ran others before"
        if hangs_s < 60.0:
            assert kept == [5] * 6
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("takes_s", [0.7, 0.8, 1.0, 1.1, 1.3])
def test_an_experiment_is_over_only_when_its_trials_say_so(play: Play, takes_s: float) -> None:
    async def scenario(world: World) -> None:
        request = world.operator.kube.request
        seen: list[list[str]] = []

        async def slow(method: str, path: str, **more: Any) -> Any:
            if method == "PATCH" and "/tunetrials/" in path:
                await asyncio.sleep(takes_s)  # trials end meanwhile
            if method == "PATCH" and "/tuneexperiments/" in path and more["body"]["status"].get("completionTime"):
                seen.append(world.states())
            return await request(method, path, **more)

        world.operator.kube.request = slow  # type: ignore[method-assign]
        await world.apply(numSamples=3)
        await world.until_over()
        assert seen[0] == ["TERMINATED"] * 3

    play(scenario)


def test_logs_that_cannot_be_had_do_not_keep_pods_forever(play: Play) -> None:
    async def scenario(world: World) -> None:
        def refuse(method: str, path: str, _body: object) -> object:
            return fake_api.error(method, path, 500, "InternalError") if path.endswith("/log") else None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply()
        await world.until_over()
        assert world.operator.kube.requests < 300

    play(scenario)


def test_a_quota_is_retried_with_backoff_and_reported(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.operator.kube.faults.append(fake_api.quota)
        await world.apply()
        await until(lambda: bool(world.status.get("waiting")), what="the status says why")
        await asyncio.sleep(300.0)
        assert world.api.all("pods") == []
        assert world.operator.kube.requests < 120
        world.operator.kube.faults.clear()
        await until(lambda: len(world.pods.begun) == 3, 60.0)
        assert (await world.until_over())["trials"]["terminated"] == 3

    play(scenario)


def test_room_in_a_quota_is_taken_as_soon_as_there_is_some(play: Play) -> None:
    async def scenario(world: World) -> None:
        def one_pod(method: str, path: str, body: object) -> object:
            phases = [(pod.get("status") or {}).get("phase") for pod in world.api.all("pods")]
            full = any(phase not in ("Succeeded", "Failed") for phase in phases)
            return fake_api.quota(method, path, body) if full else None

        world.operator.kube.faults.append(one_pod)  # type: ignore[arg-type]
        began = asyncio.get_running_loop().time()
        await world.apply(numSamples=8)
        assert (await world.until_over())["trials"]["terminated"] == 8
        took.append(asyncio.get_running_loop().time() - began)

    took: list[float] = []
    play(scenario)
    assert took[0] < 110.0, "89 s is what one after the other takes without a quota"


def test_suspended_trials_continue_where_they_were(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(3.0)
        await world.change(suspend=True)
        await until(lambda: world.status["trials"]["running"] == 0)
        await until(lambda: not world.api.all("pods"))
        assert world.condition("Suspended")["status"] == "True"
        await world.replace_operator()
        await asyncio.sleep(100.0)
        assert not world.api.all("pods")
        await world.change(suspend=False)
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 0)
        assert [len(lines) for lines in world.results().values()] == [20] * 3
        world.check_results()

    play(scenario)


def test_pending_pods_are_deleted_on_suspend(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply()
        await until(lambda: len(world.api.all("pods")) == 3)
        await world.change(suspend=True)
        await until(lambda: not world.api.all("pods"), 60.0)
        world.pods.behaviour.starts = True
        await world.change(suspend=False)
        assert (await world.until_over())["trials"]["terminated"] == 3

    play(scenario)


def test_one_trial_is_stopped_by_its_resource(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(3.0)
        name = world.trials()[1]["metadata"]["name"]
        await world.client.patch(paths.trials("team"), name, {"spec": {"stop": True}})
        await world.until_over()
        assert sorted(len(lines) for lines in world.results().values())[1:] == [20, 20]
        assert world.states() == ["TERMINATED"] * 3
        assert world.trials()[1]["status"]["lastDecision"]["reason"] == "user"

    play(scenario)


PBT = {
    "name": "pbt",
    "parameters": {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"x": {"uniform": [0.5, 1.5]}},
    },
}


def test_an_exploit_continues_in_the_pod_that_asks_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 12
        await world.apply(numSamples=4, scheduler=PBT)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        assert sum(world.pods.begun.values()) > 4
        assert world.api.counts["POST pods"] == 4
        world.check_results()

    play(scenario)


def test_waiting_pod_asks_the_next_operator(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 12
        await world.apply(numSamples=4, maxConcurrentTrials=1, scheduler=PBT)

        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while clock() - asked_at < 1.0:  # a committed attempt is given sooner
            await asyncio.sleep(0.01)
            asked_at = asked_at if world.pods.waiting["assignment"] else clock()
        closed_at = clock()
        await world.operator.close()
        await until(lambda: not world.pods.waiting["assignment"])
        assert clock() - closed_at < 1.0
        world.start_operator()
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        world.check_results()

    play(scenario)


def test_exploit_continues_elsewhere_when_pod_is_missing(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 12
        world.pods.behaviour.comes_back = False
        await world.apply(numSamples=4, scheduler=PBT)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        assert world.api.counts["POST pods"] > 4
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("how", ["vanishes", "ends", "vanishes unseen"])
def test_exploit_continues_elsewhere_when_pod_is_lost(play: Play, how: str) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 12
        world.pods.behaviour.comes_back = False
        await world.apply(numSamples=4, scheduler=PBT)
        await until(lambda: any(trial["status"].get("attempt") == 2 for trial in world.trials() if "status" in trial))
        found = [trial for trial in world.trials() if (trial.get("status") or {}).get("attempt") == 2]
        name = found[0]["metadata"]["name"] + "-1"
        pod = world.api.get("pods", name)
        assert pod is not None
        if how == "vanishes unseen":
            world.operator.watch.lose = lambda plural, _item: plural == "pods"
        if how == "ends":
            world.pods.kill(pod, 0, "Completed")
        else:
            world.pods.vanish(pod)
        world.pods.behaviour.comes_back = True
        before = world.operator.reconciles
        await asyncio.sleep(10.0)
        assert world.operator.reconciles - before < 80
        status = await world.until_over(300.0)
        assert world.states() == ["TERMINATED"] * 4
        assert status["failures"] == 0
        world.check_results()

    play(scenario)


async def until_one_has_ended(world: World) -> fake_api.Object:
    await world.apply(numSamples=2, maxConcurrentTrials=1)
    await until(lambda: world.states()[:1] == ["TERMINATED"])
    return world.trials()[0]


@pytest.mark.parametrize("away_s", [0.0, 5.0])
def test_deleted_resource_of_ended_trial_is_recreated(play: Play, away_s: float) -> None:
    async def scenario(world: World) -> None:
        ended = await until_one_has_ended(world)
        world.pods.service = None
        await world.operator.close()
        world.api.delete(ended)
        await asyncio.sleep(away_s)
        world.start_operator()
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 2

    play(scenario)


def test_stale_status_of_replaced_operator_is_corrected(play: Play) -> None:
    async def scenario(world: World) -> None:
        ended = await until_one_has_ended(world)
        stale = {"status": {"state": "RUNNING", "iteration": 2}}
        await world.client.patch(paths.trials("team"), ended["metadata"]["name"], stale, subresource="status")
        assert world.states()[0] == "RUNNING"
        await until(lambda: world.states()[0] == "TERMINATED", 5.0, "it is put right")
        assert world.trials()[0]["status"]["iteration"] == ended["status"]["iteration"]
        await world.until_over()

    play(scenario)


def test_deleted_trial_resource_is_recreated(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(2.0)
        before = world.trials()[0]["metadata"]
        await world.client.delete(paths.trials("team"), before["name"])
        status = await world.until_over()
        assert status["failures"] == 0
        assert world.states() == ["TERMINATED"] * 3
        assert world.trials()[0]["metadata"]["uid"] != before["uid"]
        world.check_results()

    play(scenario)


def test_a_trial_resource_whose_deletion_was_not_seen_comes_back(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply()
        await world.until_running(3)
        world.operator.watch.lose = lambda plural, _item: plural == "tunetrials"
        await world.client.delete(paths.trials("team"), world.trials()[0]["metadata"]["name"])
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_is_deleted_before_it_began_is_made_again(play: Play, seen: bool) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply()
        await until(lambda: len(world.api.all("pods")) == 3)
        await asyncio.sleep(1.0)
        if not seen:
            world.operator.watch.lose = lambda plural, _item: plural == "pods"
        world.pods.vanish(world.api.all("pods")[0])
        await until(lambda: len(world.api.all("pods")) == 3, 120.0)
        world.pods.behaviour.starts = True
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 0)
        assert world.states() == ["TERMINATED"] * 3

    play(scenario)


@pytest.mark.parametrize("replaced", [False, True])
def test_pod_never_started_by_its_node_is_replaced(play: Play, replaced: bool) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply()
        await until(lambda: len(world.api.all("pods")) == 3)
        pod = world.api.all("pods")[0]
        if replaced:
            await world.operator.close()
        world.pods.lose_sandbox(pod)
        if replaced:
            await world.replace_operator(1.0)
        world.pods.behaviour.starts = True
        status = await world.until_over(120.0)
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"] * 3
        assert pod["metadata"]["uid"] not in {each["metadata"]["uid"] for each in world.api.all("pods")}
        world.check_results()

    play(scenario)


def test_a_running_pod_whose_end_was_not_seen_is_asked_about(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(2.0)
        world.operator.watch.lose = lambda plural, _item: plural == "pods"
        world.pods.vanish(world.pods.live()[0])
        status = await world.until_over(300.0)
        assert status["disruptions"] == 1
        assert world.states() == ["TERMINATED"] * 3
        world.check_results()

    play(scenario)


def test_preempted_pod_is_replaced_and_counts_as_disrupted(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(3.0)
        world.pods.preempt(world.pods.live()[0])
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert [len(lines) for lines in world.results().values()] == [10] * 3
        world.check_results()

    play(scenario)


def test_disruption_after_a_failure_is_told_with_its_own_reason(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 1})
        await world.until_running(1)
        world.pods.kill(world.pods.live()[0])
        await until(lambda: len(world.pods.begun) == 2, what="it is retried")
        await asyncio.sleep(3.0)
        world.pods.preempt(world.pods.live()[0])
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (1, 1)
        (event,) = [each for each in world.api.all("events") if each["reason"] == "Disrupted"]
        assert "for a better pod" in event["message"]

    play(scenario)


def test_what_a_drained_pod_printed_is_kept(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        world.pods.behaviour.leaves_s = 0.5
        await world.apply(numSamples=1)
        await world.until_running(1)
        await asyncio.sleep(3.0)
        world.pods.preempt(world.pods.live()[0])
        await world.until_over()
        await asyncio.sleep(10.0)
        (log,) = world.files("log.txt").values()
        first, last = log.index("step 1\n"), log.index("step 10\n")
        assert first < last
        assert log.count("step 1\n") == 1

    play(scenario)


def test_the_operator_is_at_rest_after_a_pod_vanished(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 1000
        world.pods.behaviour.step_s = 20.0
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(30.0)
        world.pods.vanish(world.pods.live()[0])
        await asyncio.sleep(60.0)
        reconciles, requests = world.operator.reconciles, world.operator.kube.requests
        await asyncio.sleep(300.0)
        assert world.operator.reconciles - reconciles < 300
        assert world.operator.kube.requests - requests < 150

    play(scenario)


def test_a_deletion_that_the_server_fails_is_asked_for_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        left = [3]

        def refuse(method: str, path: str, _body: object) -> object:
            if method == "DELETE" and "/pods" in path and left[0]:
                left[0] -= 1
                return fake_api.error(method, path, 500, "InternalError")
            return None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply()
        await world.until_over()
        assert left == [0]

    play(scenario)


def test_a_secret_that_comes_late_is_waited_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply(storage={"uri": "s3://bucket/runs", "credentialsSecret": "keys"})
        await until(lambda: world.condition("Stalled").get("reason") == "SecretNotFound")
        before = world.operator.kube.requests
        await asyncio.sleep(100.0)
        assert world.operator.kube.requests - before < 40
        data = {"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
        await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": data})
        assert (await world.until_over())["trials"]["terminated"] == 3

    play(scenario)


def test_journal_gap_is_reported_until_it_is_repaired(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(3.0)
        await world.operator.close()
        taken = sorted(key for key in world.storage.values if "/journal/" in key)[1]
        data = world.storage.values.pop(taken)
        world.start_operator()
        await until(lambda: world.condition("Stalled").get("reason") == "JournalDamaged")
        assert "the journal has a gap before byte" in world.condition("Stalled")["message"]
        assert world.condition("Ready")["status"] == "False"
        world.storage.values[taken] = data
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("pause_s", [0.0, 0.3, 5.0])
def test_an_experiment_deleted_and_made_again_is_another_one(play: Play, pause_s: float) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 10
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(3.0)
        old = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
        await world.client.delete(paths.experiments("team"), "digits")
        await asyncio.sleep(pause_s)
        await world.apply()
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        assert not old & {pod["metadata"]["uid"] for pod in world.api.all("pods")}
        world.check_results()

    play(scenario)


def test_an_experiment_whose_deletion_was_not_seen_is_released(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 1000
        await world.apply()
        await world.until_running(3)
        world.operator.watch.lose = lambda plural, _item: plural == "tuneexperiments"
        await world.client.delete(paths.experiments("team"), "digits")
        await asyncio.sleep(200.0)
        assert world.operator.controller.open_count == 0
        assert not world.api.all("pods")
        assert not world.api.all("tunetrials")
        made = world.api.counts["POST pods"], world.operator.kube.requests
        await asyncio.sleep(200.0)
        assert (world.api.counts["POST pods"], world.operator.kube.requests) == made

    play(scenario)


def test_of_two_operators_one_is_fenced_and_answers_nothing_more(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        await asyncio.sleep(2.0)
        first = world.operator
        world.start_operator()
        for second in range(12):
            await asyncio.sleep(1.0)
            world.pods.service = world.operators[second % 2].service
        first.watch.close()
        await first.controller.close()
        world.pods.service = world.operator.service
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        world.check_results()

    play(scenario)


def test_a_namespace_made_again_gets_the_authority_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.until_over()
        await world.client.delete(paths.experiments("team"), "digits")
        await world.client.delete(paths.config_maps("team"), "trialpod-ca")
        await asyncio.sleep(5.0)
        world.storage.values.clear()
        await world.apply()
        await world.until_over()
        assert world.api.get("configmaps", "trialpod-ca") is not None

    play(scenario)


def test_no_pod_runs_before_its_namespace_has_the_authority(play: Play) -> None:
    async def scenario(world: World) -> None:
        def refuse(method: str, path: str, _body: object) -> object:
            return fake_api.error(method, path, 500, "InternalError") if "configmaps" in path else None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply()
        await asyncio.sleep(20.0)
        world.operator.kube.faults.clear()
        await world.until_over()
        assert world.api.get("configmaps", "trialpod-ca") is not None

    play(scenario)


def test_opening_that_fails_late_leaves_nothing_open(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        failures = iter(range(3))

        def made(*given: Any) -> PodBindings:
            if next(failures, None) is not None:
                raise ValueError("a pod that nothing here expected")
            return PodBindings(*given)

        monkeypatch.setattr(experiment_controller, "PodBindings", made)
        await world.apply()
        await world.until_running(1)
        names = [getattr(each.get_coro(), "__name__", "") for each in asyncio.all_tasks()]
        assert names.count("_housekeeping_loop") == 1
        assert len(world.operator.errors) == 3
        await world.until_over()

    play(scenario)


def test_edit_of_the_spec_does_not_wait_for_the_backoff(play: Play) -> None:
    """What fails may be what the user corrects; other news about the experiment wait."""

    async def scenario(world: World) -> None:
        def refuse(method: str, path: str, _body: object) -> object:
            return fake_api.error(method, path, 500, "InternalError") if "configmaps" in path else None

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply()
        await asyncio.sleep(45.0)
        reconciles = world.operator.reconciles
        await world.client.patch(paths.experiments("team"), "digits", {"status": {"observedGeneration": 0}}, "status")
        await asyncio.sleep(1.0)
        assert world.operator.reconciles == reconciles
        world.operator.kube.faults.clear()
        await world.change(numSamples=2)
        await until(lambda: len(world.pods.begun) >= 2, 5.0, "trials run")
        await world.until_over()

    play(scenario)


def test_api_outage_with_lost_answers_is_survived(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await asyncio.sleep(1.0)
        for fault in (fake_api.outage, fake_api.flaky(world.random, 0.3)):
            world.operator.kube.faults.append(fault)
            await asyncio.sleep(30.0)
            world.operator.kube.faults.clear()
        world.operator.kube.lost_answers = lambda: world.random.random() < 0.3
        await asyncio.sleep(30.0)
        world.operator.kube.lost_answers = lambda: False
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        assert len(world.pods.begun) == 3
        world.check_results()

    play(scenario)


def test_a_storage_that_is_away_stops_answers_and_nothing_else(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        world.storage.before = unavailable
        await asyncio.sleep(60.0)
        world.storage.before = lambda name, key: None
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 0)
        world.check_results()

    play(scenario)
