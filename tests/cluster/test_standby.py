"""Two operators: how long it takes until the other one decides, and that they never both act.

What each of them does is read from the API server's audit log, which names the pod of the client.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, manifest
from operator_release import LABELS, Operator, processes_of
from testcluster import layout

pytestmark = pytest.mark.timeout(420)
LEASE = "trialpod-operator"
DECISIONS = {("create", "pods"), ("create", "tunetrials")}


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Operator]:
    """Two operators; afterwards there is one again."""
    yield Operator.install(cluster, "replicas=2", "podDisruptionBudget.enabled=true")
    Operator.install(cluster)


def holder(operator: Operator) -> str:
    lease = operator.cluster.get("lease", LEASE) or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def both_ready(operator: Operator) -> None:
    operator.cluster.kubectl("rollout", "status", "deployment/trialpod", "--timeout=90s", timeout=100)
    operator.cluster.wait_for(lambda: holder(operator) in names(operator), "one of them is at work", 60)


def names(operator: Operator) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in operator.cluster.list("pods", LABELS)
        if not pod["metadata"].get("deletionTimestamp")
    ]


class Deeds:
    """What operators changed in the cluster since this was made: (when, which pod, verb, resource)."""

    def __init__(self) -> None:
        self._offset = layout.AUDIT_LOG.stat().st_size
        self.found: list[tuple[float, str, str, str]] = []

    def read(self) -> list[tuple[float, str, str, str]]:
        with open(layout.AUDIT_LOG, "rb") as file:
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            if b"system:serviceaccount:trialpod-system:" not in line:
                continue
            event = json.loads(line)
            if event["verb"] not in ("create", "update", "patch", "delete", "deletecollection"):
                continue
            reference = event.get("objectRef") or {}
            resource = reference.get("resource", "")
            if resource in ("tokenreviews", "leases", "events", "selfsubjectaccessreviews"):
                continue
            if (event.get("responseStatus") or {}).get("code", 500) >= 300:
                continue
            pod = (event["user"].get("extra") or {}).get("authentication.kubernetes.io/pod-name", ["?"])[0]
            if resource == "pods" and reference.get("name") == pod:
                continue  # its own label
            at = dt.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
            self.found.append((at, pod, event["verb"], resource))
        return self.found


def busy(namespace: Cluster, name: str) -> Experiment:
    """Return an experiment that makes a decision, the next trial, every few seconds."""
    document = manifest(
        namespace, name, steps=6, numSamples=200, maxConcurrentTrials=3, checkpoint={"frequency": 3, "numToKeep": 1}
    )
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda status: status.get("trials", {}).get("terminated", 0) >= 2, "trials end", 120)
    return experiment


def stop_leader(operator: Operator, leader: dict[str, Any]) -> None:
    for pid in processes_of(leader, "operator"):
        os.kill(pid, signal.SIGSTOP)


def kill_process(operator: Operator, leader: dict[str, Any]) -> None:
    for pid in processes_of(leader, "operator"):
        os.kill(pid, signal.SIGKILL)


def delete_pod(operator: Operator, leader: dict[str, Any]) -> None:
    operator.cluster.kubectl("delete", "pod", leader["metadata"]["name"], "--wait=false")


def kill_and_delete(operator: Operator, leader: dict[str, Any]) -> None:
    """As if its node were gone: no farewell, and the pod does not come back under its name."""
    operator.cluster.kubectl(
        "delete", "pod", leader["metadata"]["name"], "--wait=false", "--grace-period=0", "--force"
    )
    kill_process(operator, leader)


def test_one_that_stands_by_leaves_at_once(pair: Operator) -> None:
    both_ready(pair)
    (waiting,) = set(names(pair)) - {holder(pair)}
    began = time.time()
    pair.cluster.kubectl("delete", "pod", waiting, "--timeout=40s", timeout=45)
    assert time.time() - began < 15.0
    both_ready(pair)
    assert holder(pair) != waiting


@pytest.mark.parametrize(
    ("fault", "within_s"),
    [(delete_pod, 20.0), (kill_process, 20.0), (kill_and_delete, 35.0), (stop_leader, 45.0)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_operator_decides_soon_and_never_both(
    pair: Operator, namespace: Cluster, fault: Callable[[Operator, dict[str, Any]], None], within_s: float
) -> None:
    both_ready(pair)
    first = holder(pair)
    leader = pair.cluster.get("pod", first)
    assert leader is not None
    assert leader["metadata"]["labels"].get("trialpod.dev/active") == "true"
    experiment = busy(namespace, fault.__name__.replace("_", "-"))
    deeds = Deeds()
    pids = processes_of(leader, "operator")
    began = time.time()
    fault(pair, leader)
    try:

        def decided() -> list[tuple[float, str, str, str]]:
            return [each for each in deeds.read() if each[2:] in DECISIONS and (each[1] != first or in_place(each))]

        def in_place(deed: tuple[float, str, str, str]) -> bool:
            return fault is kill_process and deed[0] > began + 0.5

        after = namespace.wait_for(decided, "somebody decides", 60, every=0.1)[0]
        print(f"{fault.__name__}: the next decision came after {after[0] - began:.1f} s, by {after[1]}")
        assert after[0] - began < within_s
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
    if fault is stop_leader:
        time.sleep(8)  # what the one that was stopped does now, it does at once
        late = [each for each in deeds.read() if each[1] == first and each[0] > after[0]]
        assert late == [], f"the operator that lost the Lease still changed {late}"
    both_ready(pair)
    seen = experiment.status["trials"]["terminated"]
    experiment.wait(lambda status: status["trials"]["terminated"] > seen + 3, "it continues", 60)
    namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", '{"spec":{"numSamples":1}}', check=False)
    namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "it is suspended", 90)
    assert experiment.status["failures"] == 0
    assert_history(experiment, verify=False)
