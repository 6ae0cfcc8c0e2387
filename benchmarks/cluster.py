"""The operator on the test cluster: trials against bare pods, requests to the API server, reports, a drain.

Run it in the cluster's network namespace, with the operator installed (`make test-cluster` leaves it there)::

    tools/cluster/exec .venv/bin/python benchmarks/cluster.py [--pods 50]

Prints one line for each figure, and the whole as JSON at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/cluster"))

from cluster_access import Cluster  # noqa: E402
from experiments import Experiment, manifest  # noqa: E402
from operator_release import NAMESPACE, RELEASE, Operator  # noqa: E402

OPERATOR_USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
AT_ONCE = 5
TRIVIAL = """
from trialpod import tune

def train(config):
    tune.report({"score": config["x"]})
"""
ASKING = """
import time
from trialpod import tune

def train(config):
    took = 0.0
    for _ in range(60):
        before = time.perf_counter()
        tune.report({"score": 1.0, "took": took})
        took = time.perf_counter() - before
        time.sleep(0.1)
"""


def seconds_of_bare_pods(space: Cluster, number: int) -> float:
    """Create so many pods by hand, each of which starts Python and imports what a trial does, and wait for them."""
    program = "import trialpod.runner.main"
    pods = [space.pod(f"bare-{index}", ["python", "-c", program]) for index in range(number)]
    began = time.monotonic()
    space.apply(*pods)
    space.wait_for(lambda: _succeeded(space, "") >= number, f"{number} bare pods end", 600, every=0.5)
    took = time.monotonic() - began
    space.kubectl("delete", "pods", "--all", "--wait=true", timeout=300)
    return took


def _succeeded(space: Cluster, selector: str) -> int:
    return sum(pod["status"].get("phase") == "Succeeded" for pod in space.list("pods", selector))


def seconds_of_trials(
    space: Cluster, number: int, most: int | None = None, *, reuse: bool = False
) -> tuple[float, dict[str, int]]:
    """Run trivial trials; return the seconds, and the operator's requests by verb and resource.

    Args:
        space: a namespace.
        number: of trials.
        most: so many at once; None = all.
        reuse: one after the other in the same pods.
    """
    document = manifest(
        space,
        f"pods-{number}",
        source=TRIVIAL,
        numSamples=number,
        maxConcurrentTrials=most or number,
        reusePods=reuse,
        checkpoint={},
    )
    audit = space.audit()
    began = time.monotonic()
    experiment = Experiment.apply(space, document)
    experiment.wait(lambda status: status.get("completionTime"), "it ends", 600)
    took = time.monotonic() - began
    space.wait_for(lambda: not experiment.pods(), "the pods are deleted", 120)
    time.sleep(2)
    found = audit.count(
        user=OPERATOR_USER,
        by=lambda request: f"{request.verb} {request.resource}",
        where=lambda request: request.verb != "watch" and request.resource not in ("leases", "events"),
    )
    return took, {str(key): value for key, value in sorted(found.items(), key=lambda item: -item[1])}


def report_round_trip(space: Cluster) -> list[float]:
    """Return the seconds for which reports blocked that each had to be decided about, and committed."""
    scheduler = {"name": "median_stopping_rule", "parameters": {"grace_period": 0, "min_samples_required": 1000}}
    document = manifest(space, "asking", source=ASKING, scheduler=scheduler, checkpoint={}, steps=60)
    experiment = Experiment.apply(space, document)
    experiment.wait_until_over(120)
    return sorted(result["took"] for result in experiment.results()[0][5:])


def seconds_from_drain_to_training(space: Cluster) -> float:
    """Return the seconds from the order to drain a node to the first new result of the trial that was on it."""
    document = manifest(space, "drained", steps=400)
    experiment = Experiment.apply(space, document)
    experiment.wait_for_checkpoint(3)
    node = experiment.running_pod()["spec"]["nodeName"]
    began = time.time()
    space.kubectl(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
        f"--pod-selector=trialpod.dev/experiment={experiment.name}", "--timeout=60s", timeout=90,
    )  # fmt: skip
    try:
        space.wait_for(lambda: experiment.trial_status().get("attempt") == 2, "the next attempt begins", 60)
        space.wait_for(lambda: _second_attempt(experiment), "it trains", 90)
        return min(result["timestamp"] for result in _second_attempt(experiment)) - began
    finally:
        space.kubectl("uncordon", node)
        space.kubectl("delete", "te", experiment.name, "--wait=false")


def _second_attempt(experiment: Experiment) -> list[dict[str, Any]]:
    results = next(iter(experiment.results()), [])
    hosts = [result["hostname"] for result in results]
    return [result for result in results if result["hostname"] != hosts[0]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    cluster = Cluster()
    Operator(Cluster(NAMESPACE)).wait_ready()
    space = cluster.make_namespace("bench")
    figures: dict[str, Any] = {}
    try:
        bare, ours = [], []
        for index in range(arguments.rounds):
            bare.append(seconds_of_bare_pods(space, arguments.pods))
            took, requests = seconds_of_trials(cluster.make_namespace("bench"), arguments.pods)
            ours.append(took)
            per_trial = sum(requests.values()) / arguments.pods
            print(f"round {index + 1}: {arguments.pods} bare pods {bare[-1]:.1f} s, as trials {ours[-1]:.1f} s")
            print(f"requests of the operator: {per_trial:.2f} for each trial: {requests}")
        ratio = statistics.median(ours) / statistics.median(bare)
        figures |= {"bare_s": bare, "trials_s": ours, "ratio": ratio, "requests_per_trial": per_trial}
        print(f"ratio {ratio:.2f} (target 1.10); {per_trial:.2f} requests for each trial (target 6)")
        for reuse in (False, True):
            took, requests = seconds_of_trials(cluster.make_namespace("bench"), arguments.pods, AT_ONCE, reuse=reuse)
            name = "reused" if reuse else "one_by_one"
            figures[name] = {"s": took, "pods": requests.get("create pods", 0), "requests": sum(requests.values())}
            print(f"{arguments.pods} trials, {AT_ONCE} at a time, {name}: {took:.1f} s, {requests}")
        blocked = report_round_trip(space)
        figures["report_blocked_s"] = {"p50": statistics.median(blocked), "p95": blocked[int(len(blocked) * 0.95)]}
        print(f"a report that is decided about and committed: {figures['report_blocked_s']}")
        figures["drain_to_training_s"] = seconds_from_drain_to_training(space)
        print(f"from drain to training again: {figures['drain_to_training_s']:.1f} s")
    finally:
        for each in cluster.list("namespaces", "trialpod.dev/test=true"):
            if each["metadata"]["name"].startswith("bench"):
                cluster.delete_namespace(each["metadata"]["name"])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
