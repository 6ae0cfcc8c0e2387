"""The chart's NetworkPolicies where everything else is denied, enforced by kube-router's controller.

The cluster's own network plugin enforces nothing, so the first thing that is shown is that now somebody does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_access import Cluster, go_program
from experiments import Experiment, assert_history, manifest
from operator_release import NAMESPACE, RELEASE, Operator
from testcluster import layout

DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}

KNOCK = """
import socket, sys
for host, port in (each.rsplit(":", 1) for each in sys.argv[1:]):
    try:
        socket.create_connection((host, int(port)), 3).close()
        print("open")
    except OSError:
        print("closed")
"""


@pytest.fixture
def enforcer(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who enforces NetworkPolicies in the whole cluster until the test is over."""
    path = go_program("network-policies")
    with open(layout.LOGS / "network-policies.log", "wb") as log:
        program = [path, str(layout.KUBECONFIG), layout.NODES[0].name, layout.SERVICE_CIDR]
        process = subprocess.Popen(program, stdout=log, stderr=log)
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(90)
    assert "KUBE-POD-FW" not in subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def knock(cluster: Cluster, *doors: str) -> list[str]:
    """Return which addresses answer the pod `somebody` of a namespace."""
    return cluster.exec("somebody", "python", "-c", KNOCK, *doors).split()


def somebody(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("somebody", ["sleep", "600"]))
    cluster.wait_pod("somebody", "Running")


def check(manifest_file: Path) -> str:
    """Return what `trialpod check` says of an experiment, with its exit status."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("trialpod")), "check", "-f", str(manifest_file)],
        env={**os.environ, "KUBECONFIG": str(layout.KUBECONFIG)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return f"{done.stdout}{done.stderr}exit status {done.returncode}"


def test_experiments_run_under_default_deny_policies(
    cluster: Cluster, namespace: Cluster, enforcer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    elsewhere = cluster.make_namespace("elsewhere")
    deny = {**DENY, "metadata": {"name": "default-deny", "namespace": NAMESPACE}}
    try:
        places = f"networkPolicy.trials.namespaces={{{namespace.namespace}}}"
        operator = Operator.install(
            cluster, "networkPolicy.enabled=true", "networkPolicy.trials.enabled=true", places
        )
        operator.cluster.apply(deny)
        namespace.apply({**DENY, "metadata": {"name": "default-deny", "namespace": namespace.namespace}})
        for each in (namespace, elsewhere):
            somebody(each)
        storage = f"{cluster.service_address('minio', layout.MINIO_NAMESPACE)}:9000"
        reports = f"{cluster.service_address(f'{RELEASE}-reports', NAMESPACE)}:8443"
        probes = f"{operator.pod()['status']['podIP']}:8080"
        # Rules are written within seconds of a pod.
        namespace.wait_for(lambda: knock(namespace, storage) == ["closed"], "the default is denied", 90, every=1)
        assert knock(namespace, storage, reports, probes) == ["closed", "closed", "closed"]
        assert knock(elsewhere, storage, reports, probes) == ["open", "closed", "closed"]

        walled = manifest(namespace, "walled", steps=10, numSamples=2)
        (tmp_path / "walled.yaml").write_text(json.dumps(walled))
        said = check(tmp_path / "walled.yaml")
        assert "experiments can run here" in said, said
        assert "exit status 0" in said, said

        experiment = Experiment.apply(namespace, walled)
        assert experiment.wait_until_over()["trials"]["terminated"] == 2
        assert_history(experiment)
        operator.wait_ready()
        operator.cluster.helm("test", RELEASE, "--timeout=60s")
    finally:
        cluster.kubectl("delete", "networkpolicy", "default-deny", "-n", NAMESPACE, "--ignore-not-found")
        cluster.delete_namespace(elsewhere.namespace)
        Operator.install(cluster)
