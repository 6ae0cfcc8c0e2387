"""Two active operators: both decide, each for its own experiments, and each takes over what the other leaves.

What each of them does is read from the API server's audit log, which names the pod of the client.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, manifest
from operator_release import LABELS, Operator, processes_of
from testcluster import layout

from trialpod_operator.cluster import names
from trialpod_operator.cluster.shards.assignment import SHARDS, ShardMap, decode_map, shard_of

pytestmark = pytest.mark.timeout(420)
LEASE = "trialpod-operator"
WITHIN_S = 45.0
"""How late a decision may be where other tests run on the same processors; alone, all faults take less than 15 s."""
Deed = tuple[float, str, str, str, str]
"""When, which operator's pod, verb, resource, and the name of what was changed."""


_numbers = count()


@pytest.fixture(scope="module")
def pair(cluster: Cluster, no_shared_operator: None) -> Iterator[Operator]:
    """Two operators, which serve one namespace."""
    with Operator.own(cluster, "replicas=2", "podDisruptionBudget.enabled=true") as made:
        yield made


def shard_map(operator: Operator) -> ShardMap:
    lease = operator.cluster.get("lease", LEASE) or {}
    return decode_map(((lease.get("metadata") or {}).get("annotations") or {}).get(names.SHARDS_ANNOTATION, ""))


def pods(operator: Operator) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in operator.cluster.list("pods", LABELS)
        if not pod["metadata"].get("deletionTimestamp")
    ]


def both_at_work(operator: Operator) -> list[str]:
    """Wait until two operators have half of the shards each; return their pods."""
    operator.cluster.kubectl("rollout", "status", "deployment/trialpod", "--timeout=90s", timeout=100)

    def shared() -> bool:
        shards = shard_map(operator).shards
        owners = [shard.owner for shard in shards if not shard.heir]
        return sorted(owners) == sorted([*pods(operator)] * (SHARDS // 2))

    operator.cluster.wait_for(shared, "both serve half of the shards", 60)
    return sorted(pods(operator))


class Deeds:
    """What these operators changed in the cluster since this was made."""

    def __init__(self, operator: Operator) -> None:
        self._account = f"system:serviceaccount:{operator.cluster.namespace}:".encode()
        self._offset = layout.AUDIT_LOG.stat().st_size
        self.found: list[Deed] = []

    def read(self) -> list[Deed]:
        with open(layout.AUDIT_LOG, "rb") as file:
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            if self._account not in line:
                continue
            event = json.loads(line)
            if event["verb"] not in ("create", "update", "patch", "delete", "deletecollection"):
                continue
            reference = event.get("objectRef") or {}
            resource = reference.get("resource", "")
            if resource in ("tokenreviews", "leases", "events", "selfsubjectaccessreviews", "configmaps"):
                continue
            if (event.get("responseStatus") or {}).get("code", 500) >= 300:
                continue
            pod = (event["user"].get("extra") or {}).get("authentication.kubernetes.io/pod-name", ["?"])[0]
            at = dt.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
            made = (event.get("responseObject") or {}).get("metadata") or {}
            name = str(reference.get("name") or made.get("name", ""))
            self.found.append((at, pod, event["verb"], resource, name))
        return self.found

    def decisions(self, experiment: Experiment) -> list[Deed]:
        """Return the trials that were made for an experiment."""
        return [each for each in self.read() if each[2:4] == ("create", "tunetrials") and belongs(each, experiment)]


def released_at(operator: Operator, pod: str, since: float) -> float:
    """Return when an operator first released shards since then, as it logged it; infinity if it has not."""
    for line in operator.cluster.logs(pod).splitlines():
        entry = json.loads(line) if line.startswith("{") else {}
        if str(entry.get("message", "")).startswith("releasing shards"):
            at = dt.datetime.fromisoformat(entry["time"]).replace(tzinfo=dt.UTC).timestamp()
            if at >= since:
                return at
    return math.inf


def belongs(deed: Deed, experiment: Experiment) -> bool:
    return deed[4].startswith(f"{experiment.name}-")


def busy(operator: Operator, *, reuse_pods: bool = False) -> dict[str, Experiment]:
    """Return an experiment of each operator, by its pod's name, that starts a trial every few seconds."""
    found: dict[str, Experiment] = {}
    wanted, namespace = both_at_work(operator), operator.served
    for _ in range(12):
        if len(found) == len(wanted):
            break
        document = manifest(
            namespace,
            f"busy{next(_numbers)}",
            steps=6,
            numSamples=200,
            maxConcurrentTrials=2 if reuse_pods else 1,
            checkpoint={"frequency": 3, "numToKeep": 1},
            reusePods=reuse_pods,
            suspend=True,  # until it is known whose it is
        )
        experiment = Experiment.apply(namespace, document)
        owner = shard_map(operator).shards[shard_of(experiment.object["metadata"]["uid"])].owner
        if owner in found:
            namespace.kubectl("delete", "te", experiment.name, "--wait=false")
        else:
            found[owner] = experiment
            namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    assert sorted(found) == wanted
    for experiment in found.values():
        experiment.wait(lambda status: status.get("trials", {}).get("terminated", 0) >= 2, "trials end", 120)
    return found


def come_to_rest(experiments: dict[str, Experiment]) -> None:
    """Let all experiments continue, end, and show that nothing was lost or done twice."""
    for experiment in experiments.values():
        seen = experiment.status["trials"]["terminated"]
        experiment.wait(lambda status, seen=seen: status["trials"]["terminated"] > seen + 2, "it continues", 90)
        experiment.cluster.kubectl("patch", "te", experiment.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    for experiment in experiments.values():
        experiment.wait(
            lambda _, it=experiment: it.condition("Suspended").get("status") == "True", "it is suspended", 90
        )
        assert experiment.status["failures"] == 0
        assert_history(experiment, verify=False)
        experiment.cluster.kubectl("delete", "te", experiment.name, "--wait=false")


def stop(operator: Operator, pod: dict[str, Any]) -> None:
    for pid in processes_of(pod, "operator"):
        os.kill(pid, signal.SIGSTOP)


def kill_process(operator: Operator, pod: dict[str, Any]) -> None:
    for pid in processes_of(pod, "operator"):
        os.kill(pid, signal.SIGKILL)


def delete_pod(operator: Operator, pod: dict[str, Any]) -> None:
    operator.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


def kill_and_delete(operator: Operator, pod: dict[str, Any]) -> None:
    """As if its node were gone: no farewell, and the pod does not come back under its name."""
    operator.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false", "--grace-period=0", "--force")
    kill_process(operator, pod)


def test_both_decide_each_for_its_own(pair: Operator) -> None:
    experiments = busy(pair)
    deeds = Deeds(pair)
    for experiment in experiments.values():
        seen = experiment.status["trials"]["terminated"]
        experiment.wait(lambda status, seen=seen: status["trials"]["terminated"] > seen + 2, "it continues", 90)
    for owner, experiment in experiments.items():
        made = deeds.decisions(experiment)
        assert made
        assert {pod for _, pod, *_ in made} == {owner}
        number = str(shard_of(experiment.object["metadata"]["uid"]))
        assert {pod["metadata"]["labels"][names.SHARD_LABEL] for pod in experiment.pods()} <= {number}
    come_to_rest(experiments)


@pytest.mark.parametrize(
    ("victim", "fault"),
    [
        ("coordinator", kill_process),
        ("coordinator", kill_and_delete),
        ("coordinator", stop),
        ("other", delete_pod),
        ("other", stop),
    ],
    ids=lambda each: each if isinstance(each, str) else str(each.__name__),
)
def test_the_other_one_takes_over(
    pair: Operator,
    victim: str,
    fault: Callable[[Operator, dict[str, Any]], None],
) -> None:
    # The simulation has every fault with either victim.
    # Both ways in which a trial gets its process have to continue: a pod of its own, and the next turn of a pod.
    experiments = busy(pair, reuse_pods=victim == "other")
    holder = (pair.cluster.get("lease", LEASE) or {})["spec"]["holderIdentity"]
    gone = holder if victim == "coordinator" else next(name for name in experiments if name != holder)
    (stays,) = set(experiments) - {gone}
    pod = pair.cluster.get("pod", gone)
    assert pod is not None
    deeds, orphan = Deeds(pair), experiments[gone]
    pids = processes_of(pod, "operator")
    began = time.time()
    fault(pair, pod)
    try:

        def decided() -> list[Deed]:
            made = [each for each in deeds.decisions(orphan) if each[0] > began + 0.5]
            return [each for each in made if each[1] != gone or fault is kill_process]

        after = pair.served.wait_for(decided, "somebody decides", 60, every=0.1)[0]
        print(f"{victim} {fault.__name__}: the next decision came after {after[0] - began:.1f} s, by {after[1]}")
        assert after[0] - began < WITHIN_S
        if fault is stop:
            time.sleep(max(0.0, began + 30.0 - time.time()))  # as a machine that was suspended: longer than any Lease
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
    if fault is stop:
        awake = time.time()
        time.sleep(2.0)  # what the one that was stopped does now by what it knew, it does at once
        # It joins again, and may have been given shards back within the second; what it does then is its own.
        until = min(awake + 1.0, released_at(pair, stays, awake))
        late = [each for each in deeds.read() if each[1] == gone and after[0] < each[0] < until]
        assert late == [], "the operator that lost its Lease still changed something"
    come_to_rest(experiments)
    assert stays in both_at_work(pair)


def test_rolling_restart_is_not_noticed(pair: Operator) -> None:
    experiments = busy(pair)
    deeds = {owner: Deeds(pair) for owner in experiments}
    began = time.time()
    pair.cluster.kubectl("rollout", "restart", "deployment/trialpod")
    pair.cluster.kubectl("rollout", "status", "deployment/trialpod", "--timeout=120s", timeout=130)
    print(f"both were replaced in {time.time() - began:.1f} s")
    both_at_work(pair)
    come_to_rest(experiments)
    for owner, experiment in experiments.items():
        times = [began, *(at for at, *_ in deeds[owner].decisions(experiment))]
        gaps = [after - before for before, after in pairwise(times)]
        print(f"{experiment.name}: the longest time without a decision was {max(gaps):.1f} s")
        assert max(gaps) < WITHIN_S


def test_uninvolved_experiment_is_not_disturbed(pair: Operator) -> None:
    """Of the one that stays: its decisions come as before while the other one's shards are taken over."""
    experiments = busy(pair)
    gone, stays = sorted(experiments)
    pod = pair.cluster.get("pod", gone)
    assert pod is not None
    deeds, began = Deeds(pair), time.time()
    kill_and_delete(pair, pod)
    pair.served.wait_for(lambda: deeds.decisions(experiments[gone]), "the other takes over", 60, every=0.1)
    until = time.time()
    times = [began, *(each[0] for each in deeds.decisions(experiments[stays])), until]
    gaps = [after - before for before, after in pairwise(times)]
    print(f"the longest time without a decision was {max(gaps):.1f} s")
    assert max(gaps) < WITHIN_S / 2
    come_to_rest(experiments)
