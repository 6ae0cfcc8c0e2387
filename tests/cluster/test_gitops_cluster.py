"""What a GitOps tool sees of a live experiment: no difference at any moment, and health and status by its own rules.

The rules are kstatus's own library, as Flux uses it, and the chart's script in Lua 5.1, as Argo CD runs it.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_access import ROOT, Cluster, go_program
from experiments import Experiment, manifest
from lupa import lua51
from operator_release import Operator

SCRIPT = (ROOT / "charts/trialpod/argocd/health.lua").read_text()
APPLY = ("apply", "--server-side", "--field-manager=gitops", "-f", "-")
DIFF = ("diff", "--server-side", "--field-manager=gitops", "-f", "-")


@pytest.fixture(scope="module")
def kstatus() -> Path:
    return go_program("kstatus")


def health(item: dict[str, Any]) -> str:
    """Return what Argo CD shows."""
    lua = lua51.LuaRuntime(register_eval=False, unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(item, recursive=True)
    return str(lua.execute(SCRIPT)["status"])


def judged(program: Path, item: dict[str, Any]) -> str:
    """Return what Flux waits for."""
    done = subprocess.run([program], input=json.dumps(item), capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["status"])


def assert_no_difference(experiment: Experiment, document: dict[str, Any]) -> None:
    # Its exit status is 1 when something differs. It looks twice, and a status may be written in between.
    for _ in range(3):
        found = experiment.cluster.kubectl(*DIFF, input=json.dumps(document), check=False).strip()
        if not found:
            return
    raise AssertionError(found)


def test_no_diff_ever_and_both_tools_see_the_health(operator: Operator, namespace: Cluster, kstatus: Path) -> None:
    document = manifest(namespace, "synced", steps=60, numSamples=2)
    namespace.kubectl(*APPLY, input=json.dumps(document))
    experiment = Experiment(namespace, "synced")
    seen: list[tuple[str, str]] = []

    def look() -> tuple[str, str]:
        assert_no_difference(experiment, document)
        item = experiment.object
        seen.append((health(item), judged(kstatus, item)))
        return seen[-1]

    look()
    experiment.wait(lambda status: status.get("trials", {}).get("running") == 2, "both run", 90)
    # Until a pod of theirs runs, it is on its way.
    experiment.wait(lambda _: experiment.condition("Ready").get("status") == "True", "it is active", 60)
    assert look() == ("Healthy", "Current")
    time.sleep(3)  # results come in, statuses are written
    assert look() == ("Healthy", "Current")

    document["spec"]["suspend"] = True
    namespace.kubectl(*APPLY, input=json.dumps(document))
    experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "it is suspended", 60)
    assert look() == ("Suspended", "Current")
    document["spec"]["suspend"] = False
    namespace.kubectl(*APPLY, input=json.dumps(document))
    experiment.wait_until_over()
    assert look() == ("Healthy", "Current")
    for trial in experiment.trials():
        assert (health(trial), judged(kstatus, trial)) == ("Healthy", "Current")

    # The operator owns fields of the status, and of nothing else.
    fields = experiment.cluster.kubectl("get", "te", "synced", "--show-managed-fields", "-o", "json")
    for entry in json.loads(fields)["metadata"]["managedFields"]:
        if entry["manager"] != "gitops":
            assert set(entry["fieldsV1"]) <= {"f:status"}, entry
    # And when all is done, nobody writes any more.
    version = experiment.object["metadata"]["resourceVersion"]
    time.sleep(6)
    assert experiment.object["metadata"]["resourceVersion"] == version
    assert_no_difference(experiment, document)


def test_invalid_experiment_is_degraded_and_failed_trial_is_not(
    operator: Operator, namespace: Cluster, kstatus: Path
) -> None:
    wrong = Experiment.apply(namespace, manifest(namespace, "wrong", scheduler={"name": "ashaa"}))
    source = "def train(config):\n    raise ValueError('on purpose')\n"
    failing = Experiment.apply(namespace, manifest(namespace, "failing", source=source, checkpoint={}))
    failing.wait_until_over()
    (trial,) = failing.trials()
    assert (health(trial), judged(kstatus, trial)) == ("Healthy", "Current"), "what failed is a result"
    wrong.wait(lambda _: wrong.condition("Stalled"), "it stalls", 90)
    assert (health(wrong.object), judged(kstatus, wrong.object)) == ("Degraded", "Failed")
    namespace.kubectl("delete", "te", "wrong", "failing", "--timeout=60s", timeout=70)
