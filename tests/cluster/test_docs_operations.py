"""Every command of the pages for operators, word by word, one after the other.

Only the registry of the examples is replaced by what the test cluster has. It removes all experiments of the cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_access import ROOT, Cluster
from experiments import Experiment, manifest, storage_at
from operator_release import NAMESPACE, RELEASE, Operator

pytestmark = pytest.mark.timeout(500)
PAGES = ("install", "upgrades", "availability", "backup", "operations")
DOC = "\n".join((ROOT / f"docs/{name}.md").read_text() for name in PAGES)
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # finds trialpod
HERE = {
    "registry.example/trialpod:0.1.0": "docker.io/trialpod/trialpod:test",
    "image.tag=0.1.0": "image.tag=test",
    "registry.example/trialpod": "docker.io/trialpod/trialpod",
    "charts/trialpod ": f"{ROOT}/charts/trialpod ",
    "registry.example/[^": "docker.io/trialpod/[^",
}


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Cluster]:
    """The namespace team-a of the page; afterwards there is an ordinary operator again."""
    own = Cluster(NAMESPACE)
    own.helm("uninstall", RELEASE, "--wait", check=False)
    for name in ("tuneexperiments", "tunetrials"):  # kept from a release of another name
        owner = [f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}"]
        cluster.kubectl("annotate", "--overwrite", "crd", f"{name}.trialpod.dev", *owner, check=False)
    cluster.delete_namespace("team-a", wait=True)
    made = cluster.make_namespace("team")
    secret = made.get("secret", "minio")
    cluster.kubectl("create", "namespace", "team-a")
    team = Cluster("team-a")
    stored = storage_at(team, "climb")
    stored.delete_many(stored.list())  # what a run that failed may have left
    assert secret is not None
    team.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "minio"}, "data": secret["data"]})
    cluster.delete_namespace(made.namespace)
    yield team
    cluster.delete_namespace("team-a")
    cluster.wait_for(lambda: cluster.get("namespace", NAMESPACE) is None or own.list("pods") is not None, "", 60)
    Operator.install(cluster)


def test_the_commands_do_what_the_page_says(cluster: Cluster, team: Cluster, tmp_path: Path) -> None:
    done: set[str] = set()

    def block(word: str) -> str:
        """Run the first block with that word that has not run, and return what it printed."""
        found = next(each for each in BLOCKS if word in each and each not in done)
        done.add(found)
        for name, here in HERE.items():
            found = found.replace(name, here)
        script = ["bash", "-euo", "pipefail", "-c", found]
        ran = subprocess.run(script, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False, timeout=200)
        assert ran.returncode == 0, f"{found}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    assert "has its" in block("helm test")
    block("kubectl label namespace")
    assert "docker.io/trialpod/trialpod:test" in block("sort -u")
    block("networkPolicy.enabled=true")
    experiment = Experiment.apply(team, manifest(team, "climb", steps=400, storage=_storage(team)))
    experiment.wait_for_checkpoint(2)
    pods = {pod["metadata"]["uid"] for pod in experiment.pods()}
    block("helm rollback")
    block("replicas=2")
    own = Cluster(NAMESPACE)
    team.wait_for(lambda: len(own.list("leases", "trialpod.dev/operators")) == 3, "both are active", 60)
    listed = block("get lease")
    assert listed.count("trialpod-operator-trialpod-") == 2
    block("jq")
    block("kubectl apply -f experiments.json")
    block("get events")
    assert {pod["metadata"]["uid"] for pod in experiment.pods()} == pods

    uninstall = "helm uninstall trialpod --namespace trialpod-system --wait\n"
    assert uninstall in BLOCKS
    done.add(uninstall)
    own.helm("uninstall", RELEASE, "--wait")
    team.kubectl("delete", "te", "climb", "--wait=false")
    assert "team-a climb" in block("range .items")
    block("kubectl patch")
    team.wait_for(lambda: experiment.object == {}, "it goes", 90)

    Operator.install(cluster)
    block("kubectl delete crd")
    assert not [each for each in cluster.list("crds") if "trialpod" in each["metadata"]["name"]]

    assert "operator" in block("kubectl apply --server-side")
    assert set(BLOCKS) == done, "every block has been run"


def _storage(team: Cluster) -> dict[str, str]:
    return {**manifest(team, "x")["spec"]["storage"], "deletionPolicy": "Delete"}
