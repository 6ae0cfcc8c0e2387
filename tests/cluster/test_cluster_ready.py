"""What every other test of the cluster relies on."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from cluster_access import ACCESS_KEY, BUCKET, ENDPOINT, NODES, SECRET_KEY, Cluster
from testcluster import processes, system

from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.storage import S3Storage


class _Keys:
    source = "the test"

    def get(self) -> Credentials:
        return Credentials(ACCESS_KEY, SECRET_KEY)

    def refused(self, credentials: Credentials) -> bool:
        return False


@pytest.mark.together
@pytest.mark.parametrize("node", NODES)
def test_a_pod_runs_on_each_node(namespace: Cluster, node: str) -> None:
    namespace.apply(namespace.pod("hello", ["echo", "hello"], node=node))
    pod = namespace.wait_pod("hello")
    assert pod["spec"]["nodeName"] == node
    assert namespace.logs("hello") == "hello\n"


@pytest.mark.together
def test_a_pod_reaches_minio_by_its_name_through_the_service(namespace: Cluster) -> None:
    program = f"import urllib.request as r; print(r.urlopen('{ENDPOINT}/minio/health/ready', timeout=5).status)"
    # On both nodes, that is within one bridge and between two.
    for node in NODES:
        namespace.apply(namespace.pod(f"ask-{node}", ["python", "-c", program], node=node))
    for node in NODES:
        namespace.wait_pod(f"ask-{node}")
        assert namespace.logs(f"ask-{node}") == "200\n"


@pytest.mark.together
def test_minio_and_bucket_are_reachable_by_service_address(namespace: Cluster) -> None:
    client = S3Client(
        BUCKET,
        StorageOptions(endpoint=namespace.minio_endpoint(), addressing="path").resolved({}),
        credentials=_Keys(),
    )
    storage = S3Storage.open(f"s3://{BUCKET}/{namespace.namespace}", client=client)
    storage.write("key", b"value")
    assert storage.read("key") == b"value"
    storage.delete("key")


@pytest.mark.together
def test_image_runs_as_any_user_on_read_only_root(namespace: Cluster) -> None:
    program = (
        "import os, sys, trialpod, trialpod_operator, sklearn, kopf, train\n"
        "assert train.train_digits\n"
        "try: open('/opt/x', 'w')\n"
        "except OSError as error: print(error.strerror, os.getuid(), trialpod.__cached__.endswith('.pyc'))"
    )
    namespace.apply(
        namespace.pod("own", ["python", "-c", program]),
        namespace.pod("other", ["python", "-c", program], securityContext={"runAsUser": 1234567, "runAsGroup": 0}),
        namespace.pod("cli", ["trialpod", "--help"]),
    )
    for name, user in (("own", 65532), ("other", 1234567)):
        namespace.wait_pod(name)
        assert namespace.logs(name) == f"Read-only file system {user} True\n"
    namespace.wait_pod("cli")
    assert "usage: trialpod" in namespace.logs("cli")


def test_pods_get_the_gpus_of_the_node_and_the_next_waits(namespace: Cluster) -> None:
    gpus = {"limits": {"nvidia.com/gpu": 3}}
    for name in ("one", "two", "three"):
        namespace.apply(namespace.pod(name, ["sleep", "60"], resources=gpus))
    running = {"one", "two", "three"}

    def one_waits() -> str:
        waiting = [
            pod["metadata"]["name"]
            for pod in namespace.list("pods")
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
            if "Insufficient nvidia.com/gpu" in condition["message"]
        ]
        return waiting[0] if len(waiting) == 1 else ""

    waiting = namespace.wait_for(one_waits, "the pod for which no GPUs are left says so")
    for name in running - {waiting}:
        namespace.wait_pod(name, "Running")


@pytest.mark.together
def test_requests_are_counted_by_their_user(namespace: Cluster) -> None:
    audit = namespace.audit()
    for _ in range(3):
        namespace.kubectl("get", "configmap", "kube-root-ca.crt", "--ignore-not-found")
    counts = audit.count(user="admin", where=lambda request: request.namespace == namespace.namespace)
    audit.close()
    assert counts[("get", "configmaps")] == 3


def test_a_running_pod_outlives_its_kubelet(namespace: Cluster, faults: Cluster) -> None:
    namespace.apply(namespace.pod("stays", ["sleep", "600"], node="node-b"))
    before = namespace.wait_pod("stays", "Running")
    faults.restart_kubelet("node-b")
    after = namespace.wait_pod("stays", "Running")
    assert (
        after["status"]["containerStatuses"][0]["containerID"]
        == before["status"]["containerStatuses"][0]["containerID"]
    )
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_pods_of_a_lost_node_are_evicted_and_the_node_comes_back(namespace: Cluster, faults: Cluster) -> None:
    namespace.apply(namespace.pod("lost", ["sleep", "600"], node="node-b"))
    namespace.wait_pod("lost", "Running")
    faults.kill_node("node-b")
    killed = time.monotonic()

    def evicted() -> bool:
        pod = namespace.get("pod", "lost") or {}
        reasons = [each.get("reason") for each in pod.get("status", {}).get("conditions", ())]
        return "DeletionByTaintManager" in reasons

    namespace.wait_for(evicted, "the pod of the lost node is to be deleted", timeout=60)
    assert time.monotonic() - killed < 60
    faults.start_node("node-b")
    namespace.wait_condition("pod", "lost", "delete")
    namespace.apply(namespace.pod("again", ["true"], node="node-b"))
    namespace.wait_pod("again")


@pytest.mark.parametrize("name", ["kube-controller-manager", "kube-scheduler", "kube-apiserver", "etcd"])
def test_the_control_plane_comes_back(namespace: Cluster, faults: Cluster, name: str) -> None:
    namespace.kubectl("create", "configmap", "before", "--from-literal=a=b")
    faults.stop_component(name, kill=True)
    faults.start_component(name)
    found = namespace.wait_for(lambda: namespace.get("configmap", "before"), "what was stored is there")
    assert found["data"] == {"a": "b"}
    # kubectl retries nothing: the API server may not have found its etcd again at once.
    pod = json.dumps(namespace.pod("after", ["true"]))
    namespace.wait_for(lambda: namespace.kubectl("apply", "-f", "-", input=pod), "a pod is accepted")
    namespace.wait_pod("after")


@pytest.mark.together
def test_a_process_is_there_until_its_last_thread_is_gone() -> None:
    """Until then its ports are taken."""
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        system.wait_until(lambda: state(process.pid) == "Z", "its first thread is over", timeout=90)
        assert processes.start_time(process.pid) is not None
        process.kill()
        system.wait_until(lambda: processes.start_time(process.pid) is None, "it is gone", timeout=90)
        assert state(process.pid) == "Z"
    finally:
        process.kill()
        process.wait(90)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
