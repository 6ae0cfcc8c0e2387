"""Trials of several pods, on the real cluster: they find each other, and lose no step when one of them goes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, assert_unbroken, counts, manifest
from operator_release import Operator

STEPS_TO_DO = 30
WORKERS = 2

ALL_REDUCE = """
import json
import os
import socket
import struct
import tempfile
import time
from pathlib import Path

from trialpod import tune


def connect(rank, size):
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        server = socket.create_server(("", address[1]))
        return [server.accept()[0] for _ in range(size - 1)]
    while True:
        try:
            peer = socket.create_connection(address, timeout=5)
        except (ConnectionRefusedError, TimeoutError):
            time.sleep(0.05)
        else:
            peer.settimeout(None)  # on a busy machine the head takes its time to store a checkpoint
            return [peer]


def receive(peer):
    data = peer.recv(8, socket.MSG_WAITALL)
    if len(data) < 8:
        raise ConnectionResetError("a rank is gone")
    return struct.unpack("d", data)[0]


def all_reduce(peers, rank, value):
    if rank:
        peers[0].sendall(struct.pack("d", value))
        return receive(peers[0])
    total = value + sum(receive(peer) for peer in peers)
    for peer in peers:
        peer.sendall(struct.pack("d", total))
    return total


def train(config):
    context = tune.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    checkpoint = tune.get_checkpoint()
    count, total = json.loads(Path(checkpoint.path, "state.json").read_text()) if checkpoint else (0, 0.0)
    peers = connect(rank, size)
    while True:
        time.sleep(0.2)
        if config.get("crash") == rank and count == 5 and not checkpoint:
            raise ValueError("crashed on purpose")
        count, total = count + 1, total + all_reduce(peers, rank, rank + 1.0)
        print("rank", rank, "step", count, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([count, total]))
            tune.report({"count": count, "score": total}, checkpoint=tune.Checkpoint.from_directory(folder))
"""


def group_manifest(namespace: Cluster, **spec: Any) -> dict[str, Any]:
    """Return an experiment whose one trial has a head and two workers."""
    workers = {"replicas": WORKERS}
    document = manifest(namespace, "reduce", steps=STEPS_TO_DO, source=ALL_REDUCE, workers=workers, **spec)
    document["spec"]["trainable"]["attribute"] = "train"
    document["spec"]["checkpoint"] = {"numToKeep": 2}
    return document


@pytest.fixture
def group(operator: Operator, namespace: Cluster) -> Experiment:
    """An experiment whose one trial has a head and two workers, and a checkpoint."""
    experiment = Experiment.apply(namespace, group_manifest(namespace))
    experiment.wait_for_checkpoint(3)
    return experiment


def assert_complete(experiment: Experiment, *, disruptions: int, failures: int = 0) -> dict[str, Any]:
    """Assert that the trial came to its end, each step once; return its status."""
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["disruptions"]) == ("TERMINATED", failures, disruptions), trial
    results = experiment.results()[0]
    assert_unbroken(counts(results), STEPS_TO_DO, repeated=0)
    assert results[-1]["score"] == STEPS_TO_DO * sum(range(1, WORKERS + 2))
    assert_history(experiment)
    return trial


def worker(experiment: Experiment, rank: int) -> str:
    """Return the name of the pod of that rank."""
    (pod,) = [pod for pod in experiment.pods() if pod["metadata"]["labels"]["trialpod.dev/rank"] == str(rank)]
    return str(pod["metadata"]["name"])


def test_the_pods_of_a_trial_find_each_other_and_run_it_once(group: Experiment) -> None:
    pods = {pod["metadata"]["labels"]["trialpod.dev/rank"] for pod in group.pods()}
    assert pods == {"0", "1", "2"}
    assert assert_complete(group, disruptions=0)["attempt"] == 1
    group.cluster.wait_for(lambda: not group.pods(), "the pods are deleted", 60)


def test_deleted_worker_restarts_group_from_checkpoint(group: Experiment) -> None:
    group.cluster.kubectl("delete", "pod", worker(group, 2), "--wait=false")
    trial = assert_complete(group, disruptions=1)
    assert trial["attempt"] == 2
    assert "Disrupted" in group.cluster.events()


def test_vanished_worker_restarts_group_without_a_failure(group: Experiment) -> None:
    group.cluster.kubectl("delete", "pod", worker(group, 1), "--grace-period=0", "--force")
    assert assert_complete(group, disruptions=1)["attempt"] == 2


def test_crashed_worker_is_one_failure_with_the_first_error(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, group_manifest(namespace, searchSpace={"crash": 1}))
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["attempt"]) == ("ERROR", 1, 1), trial
    # The other worker loses its connection in the same moment, and may be seen to end first.
    assert re.search("worker 1: .*ValueError: crashed on purpose|worker 2: .*Error", trial["message"]), trial


ALONE = """
import time

from trialpod import tune


def train(config):
    rank = tune.get_context().get_world_rank()
    for step in range(40):
        time.sleep(0.2)
        if rank == 1 and step == 4:
            raise RuntimeError("rank 1 broke")
        tune.report({"count": step + 1, "score": 1.0})
"""


def test_completed_head_hides_no_failed_worker(operator: Operator, namespace: Cluster) -> None:
    """Rank 0 needs nothing of rank 1, and returns within its grace period."""
    document = manifest(namespace, "alone", steps=40, source=ALONE, workers={"replicas": 1})
    document["spec"]["trainable"]["attribute"] = "train"
    document["spec"]["checkpoint"] = {}
    document["spec"]["template"] = {"spec": {"terminationGracePeriodSeconds": 30}}
    experiment = Experiment.apply(namespace, document)
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["attempt"]) == ("ERROR", 1, 1), trial
    assert "worker 1" in trial["message"]
