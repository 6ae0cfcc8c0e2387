"""The remedy of each reason is carried out on a real cluster, and the experiment then succeeds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_access import BUCKET, IMAGE, Cluster
from experiments import Experiment, manifest, storage_spec

from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names

Json = dict[str, Any]

NEEDS_MEMORY = """
from trialpod import tune

def train(config):
    hoard = b"x" * (250 * 2**20)
    tune.report({"score": len(hoard)})
"""
NEEDS_TIME = """
import time
from trialpod import tune

def train(config):
    time.sleep(8)
    tune.report({"score": 1})
"""
EXITS = """
import os

def train(config):
    os._exit(0)
"""
WORKER_NEEDS_MEMORY = """
import time
from trialpod import tune

def train(config):
    worker = tune.get_context().get_world_rank() == 1
    hoard = b"x" * (250 * 2**20 if worker else 1)
    time.sleep(10)  # no completion goes before the worker's end
    tune.report({"score": len(hoard)})
"""
WORKER_BREAKS = """
from trialpod import tune

def train(config):
    if tune.get_context().get_world_rank() == 1:
        raise FileNotFoundError("data.csv")
    import time
    time.sleep(60)
"""
FINE = "from trialpod import tune\n\ndef train(config):\n    tune.report({'score': 1})\n"


def pod(**spec: Any) -> Json:
    """Return the fields of an experiment whose pods have these fields."""
    return {"template": {"spec": {"terminationGracePeriodSeconds": 5, **spec}}}


def container(**fields: Any) -> Json:
    """Return the fields of an experiment whose trial's container has these fields."""
    return pod(containers=[{"name": names.CONTAINER, **fields}])


def object_of(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def secret(name: str, **data: str) -> Json:
    return object_of(
        "Secret", name, data={key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    )


def from_secret(name: str, key: str) -> Json:
    return container(env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}])


def real_keys(cluster: Cluster) -> None:
    cluster.apply(object_of("Secret", "keys", data=(cluster.get("secret", "minio") or {})["data"]))


@dataclass(frozen=True)
class Case:
    """A mistake, and what its remedy changes.

    Attributes:
        spec: fields of the experiment with the mistake.
        patch: fields to change, as the remedy says.
        before: objects of the namespace that are part of it.
        after: objects that the remedy makes.
        act: anything else that the remedy says.
        ends: the mistake ends attempts, so `trialpod retry` is part of the remedy.
        labels: of the namespace.
    """

    spec: Json
    patch: Json | None = None
    before: tuple[Json, ...] = ()
    after: tuple[Json, ...] = ()
    act: Callable[[Cluster], None] | None = None
    ends: bool = False
    labels: Json | None = None


def name_storage(cluster: Cluster) -> None:
    patch = json.dumps({"spec": {"storage": storage_spec(cluster)}})
    cluster.kubectl("patch", "te", "wrong", "--type=merge", "-p", patch)


def ungate(cluster: Cluster) -> None:
    for each in cluster.list("pods"):
        cluster.kubectl(
            "patch", "pod", each["metadata"]["name"], "--type=json",
            "-p", '[{"op": "remove", "path": "/spec/schedulingGates"}]',
        )  # fmt: skip


SOURCE = {"configMapRef": {"name": "code", "key": "a.py", "entrypoint": "a:train"}}
CASES: dict[Reason, Case] = {
    Reason.UNSCHEDULABLE: Case(pod(nodeSelector={"no": "where"}), pod(nodeSelector=None)),
    Reason.NOT_SCHEDULED: Case(pod(schedulerName="nobody"), pod(schedulerName=None)),
    Reason.SCHEDULING_GATED: Case(pod(schedulingGates=[{"name": "example.com/gate"}]), act=ungate),
    Reason.QUOTA_NEEDS_RESOURCES: Case(
        {},
        {"resources": {"cpu": "100m", "memory": "128Mi"}},
        before=(object_of("ResourceQuota", "quota", spec={"hard": {"limits.cpu": "2", "limits.memory": "2Gi"}}),),
    ),
    Reason.LIMIT_RANGE: Case(
        {"resources": {"memory": "512Mi"}},
        {"resources": {"memory": "128Mi"}},
        before=(
            object_of("LimitRange", "range", spec={"limits": [{"type": "Container", "max": {"memory": "256Mi"}}]}),
        ),
    ),
    Reason.POD_SECURITY: Case(
        pod(hostNetwork=True), pod(hostNetwork=None), labels={"pod-security.kubernetes.io/enforce": "restricted"}
    ),
    Reason.RUNS_AS_ROOT: Case(
        pod(securityContext={"runAsNonRoot": True, "runAsUser": 0}), pod(securityContext={"runAsUser": 1000})
    ),
    Reason.IMAGE_PULL_FAILED: Case({"image": "trialpod/nowhere:1"}, {"image": IMAGE}),
    Reason.SECRET_NOT_FOUND: Case(from_secret("token", "key"), after=(secret("token", key="x"),)),
    Reason.SECRET_KEY_NOT_FOUND: Case(
        from_secret("token", "key"), before=(secret("token", other="x"),), after=(secret("token", key="x"),)
    ),
    Reason.SECRET_INVALID: Case(
        {"storage": {"credentialsSecret": "keys"}}, before=(secret("keys", AWS_ACCESS_KEY_ID="x"),), act=real_keys
    ),
    Reason.CONFIG_MAP_NOT_FOUND: Case(
        {"trainable": SOURCE}, after=(object_of("ConfigMap", "code", data={"a.py": FINE}),)
    ),
    Reason.CONFIG_MAP_KEY_NOT_FOUND: Case(
        {"trainable": SOURCE},
        before=(object_of("ConfigMap", "code", data={"b.py": FINE}),),
        after=(object_of("ConfigMap", "code", data={"a.py": FINE}),),
    ),
    Reason.SERVICE_ACCOUNT_NOT_FOUND: Case(
        pod(serviceAccountName="trainer"), after=(object_of("ServiceAccount", "trainer"),)
    ),
    Reason.PRIORITY_CLASS_NOT_FOUND: Case(pod(priorityClassName="absent"), pod(priorityClassName=None)),
    Reason.INVALID_TEMPLATE: Case(
        container(volumeMounts=[{"name": "absent", "mountPath": "/data"}]), container(volumeMounts=None)
    ),
    Reason.OOM_KILLED: Case(
        {"trainable": {"source": NEEDS_MEMORY}, "resources": {"memory": "192Mi"}},
        {"resources": {"memory": "512Mi"}},
        ends=True,
    ),
    Reason.DEADLINE_EXCEEDED: Case(
        {"trainable": {"source": NEEDS_TIME}, **pod(activeDeadlineSeconds=3, terminationGracePeriodSeconds=1)},
        pod(activeDeadlineSeconds=60),
        ends=True,
    ),
    Reason.EXITED_SILENTLY: Case({"trainable": {"source": EXITS}}, {"trainable": {"source": FINE}}, ends=True),
    Reason.INIT_CONTAINER_FAILED: Case(
        pod(initContainers=[{"name": "fetch", "image": IMAGE, "command": ["sh", "-c", "echo no; exit 3"]}]),
        pod(initContainers=[{"name": "fetch", "image": IMAGE, "command": ["true"]}]),
        ends=True,
    ),
    Reason.COMMAND_NOT_FOUND: Case(container(command=["no-python"]), container(command=None), ends=True),
    Reason.WORKER_FAILED: Case(
        {"trainable": {"source": WORKER_BREAKS}, "workers": {"replicas": 1}},
        {"trainable": {"source": FINE}},
        ends=True,
    ),
    Reason.STORAGE_MISSING: Case({"storage": None}, act=name_storage),
    Reason.SCOPED_CREDENTIALS_NEED_SECRET: Case(
        {"storage": {"credentialsSecret": None, "scopedCredentials": {}}},
        {"storage": {"credentialsSecret": "minio"}},
    ),
    Reason.SCOPED_CREDENTIALS_IMPOSSIBLE: Case(
        {"storage": {"scopedCredentials": {}, "uri": f"s3://{BUCKET}/a*b"}}, act=name_storage
    ),
}
OTHERS = {
    "worker out of memory": Case(
        {
            "trainable": {"source": WORKER_NEEDS_MEMORY},
            "workers": {"replicas": 1, "resources": {"memory": "192Mi"}},
        },
        {"workers": {"resources": {"memory": "512Mi"}}},
        ends=True,
    ),
}
"""Mistakes with a remedy of their own for a reason that is in the table above."""


def told(experiment: Experiment) -> set[str]:
    """Return the reasons that the experiment has at the moment."""
    status = experiment.status
    conditions = [each["reason"] for each in status.get("conditions", [])]
    return {*conditions, (status.get("waiting") or {}).get("reason", ""), *endings(experiment)}


def endings(experiment: Experiment) -> list[str]:
    return [str((each.get("status") or {}).get("reason")) for each in experiment.trials()]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("reason", CASES, ids=str)
def test_remedy_works(namespace: Cluster, reason: Reason) -> None:
    carry_out(namespace, CASES[reason], reason)


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_remedy_of_a_special_case_works(namespace: Cluster, case: Case) -> None:
    carry_out(namespace, case)


def carry_out(namespace: Cluster, case: Case, reason: Reason | None = None) -> None:
    """Make a mistake, wait until its reason is given, do what the remedy says, and wait for success."""
    for label, value in (case.labels or {}).items():
        namespace.kubectl("label", "namespace", namespace.namespace, f"{label}={value}")
    for each in case.before:
        namespace.apply(each)
    spec = dict(case.spec)
    if spec.get("storage", {}) is not None:
        given = {**storage_spec(namespace), **spec.get("storage", {})}
        spec["storage"] = {key: value for key, value in given.items() if value is not None}
    document = manifest(namespace, "wrong", steps=2, failurePolicy={"maxFailures": 0}, **spec)
    if "trainable" in spec:
        document["spec"]["checkpoint"] = {}
    experiment = Experiment.apply(namespace, document)
    if case.ends:
        experiment.wait_until_over()
        assert experiment.condition("Failed")["status"] == "True"
    else:
        experiment.wait(lambda _: str(reason) in told(experiment), f"it says {reason}", 60)
    for each in case.after:
        namespace.apply(each)
    if case.patch is not None:
        namespace.kubectl("patch", "te", "wrong", "--type=merge", "-p", json.dumps({"spec": case.patch}))
    if case.act is not None:
        case.act(namespace)
    if case.ends:
        namespace.kubectl("annotate", "te", "wrong", f"{names.RETRY_ANNOTATION}=1")
        experiment.wait(lambda status: status.get("retried") == "1", "the request is taken")
    experiment.wait(lambda _: experiment.condition("Succeeded").get("status") == "True", "the remedy works", 120)
