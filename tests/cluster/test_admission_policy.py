"""What the chart's ValidatingAdmissionPolicy lets the templates of experiments ask for, as the API server judges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import ROOT, Cluster
from experiments import manifest
from testcluster import layout

pytestmark = pytest.mark.xdist_group("admission policy")  # the policy has one name in the cluster

VALUES = {
    "admissionPolicy.enabled": True,
    "admissionPolicy.serviceAccounts": ["default", "trainer"],
    "admissionPolicy.priorityClasses": ["batch"],
    "admissionPolicy.imagePrefixes": ["docker.io/trialpod/", "registry.example/"],
    "admissionPolicy.unjudgedKinds": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}],
    "admissionPolicy.budgets": {"maxTrialHours": 500, "maxGpuHours": 40.5},
}


@pytest.fixture(scope="module")
def judged(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace that the policy is for; it is for no other one."""
    made = cluster.make_namespace("policy", {"trialpod.dev/judged": "true"})
    values = {**VALUES, "admissionPolicy.namespaceSelector": {"matchLabels": {"trialpod.dev/judged": "true"}}}
    sets = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    words = ["template", "judge", str(ROOT / "charts/trialpod"), f"--kube-version={layout.KUBERNETES_VERSION}"]
    words += ["--show-only", "templates/admissionpolicy.yaml"]
    rendered = made.helm(*words, *sets)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl("apply", "-f", "-", input=rendered)
    try:
        made.wait_for(
            lambda: "hostNetwork" in tried(made, pod={"hostNetwork": True}), "the policy is enforced", 30, every=0.5
        )
        yield made
    finally:
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", input=rendered)
        cluster.delete_namespace(made.namespace)


def tried(cluster: Cluster, *, pod: dict[str, Any] | None = None, **spec: Any) -> str:
    """Return what the API server says to an experiment with this template (it is not kept)."""
    spec = {"maxTrialHours": 500, **({"template": {"spec": pod}} if pod is not None else {}), **spec}
    document = manifest(cluster, "judged", **{key: value for key, value in spec.items() if value is not None})
    return cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(document), check=False)


def trial(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "trial", **fields}]}


def context(**fields: Any) -> dict[str, Any]:
    return trial(securityContext=fields)


IMAGE_VOLUME = {"volumes": [{"name": "v", "image": {"reference": "evil.example/payload"}}]}
TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volumes: hostPath reaches into the node; use"),
        ({"volumes": [{"name": "v", **TOKEN}]}, "volumes: a projected serviceAccountToken"),
        ({"hostNetwork": True}, "hostNetwork, hostPID and hostIPC are not allowed; remove them"),
        ({"hostPID": True}, "hostPID"),
        (trial(ports=[{"containerPort": 80, "hostPort": 80}]), "hostPort is not allowed"),
        (context(privileged=True), "privileged and hostProcess are not allowed; remove"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "privileged"),
        (context(allowPrivilegeEscalation=True), "allowPrivilegeEscalation is not allowed"),
        (context(capabilities={"add": ["SYS_ADMIN"]}), "capabilities: add is not allowed"),
        ({"securityContext": {"runAsUser": 0}}, "use an image with a numeric USER"),
        (context(runAsNonRoot=False), "use an image with a numeric USER"),
        (context(seccompProfile={"type": "Unconfined"}), "seccompProfile Unconfined"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken: trials get no token"),
        ({"nodeName": "node-a"}, "nodeName passes the scheduler by; use nodeSelector"),
        ({"serviceAccountName": "admin"}, "serviceAccountName: admin is not allowed; use default, trainer"),
        ({"serviceAccount": "admin"}, "serviceAccountName: admin is not allowed"),
        ({"priorityClassName": "system-node-critical"}, "use batch, or ask for it to be added"),
        (trial(image="evil.example/x"), "evil.example/x is not allowed; images begin with docker.io/trialpod/ or"),
        (IMAGE_VOLUME, "evil.example/payload is not allowed; images begin with"),
    ],
    ids=lambda part: json.dumps(part)[:50] if isinstance(part, dict) else "",
)
def test_template_beyond_limits_is_refused_with_field(judged: Cluster, pod: dict[str, Any], words: str) -> None:
    said = tried(judged, pod=pod)
    assert words in said, said


def test_the_image_of_the_experiment_counts_too(judged: Cluster) -> None:
    assert "images begin with" in tried(judged, image="evil.example/x:1")
    assert "created (server dry run)" in tried(judged, image="registry.example/x:1")


def test_the_image_of_the_decider_counts_too(judged: Cluster) -> None:
    decider = {"searchAlgorithm": {"entrypoint": "own:Search"}}
    assert "images begin with" in tried(judged, decider={**decider, "image": "evil.example/x:1"})
    assert "created (server dry run)" in tried(judged, decider={**decider, "image": "registry.example/x:1"})


def resource(spec: Any, kind: str = "Job", api_version: str = "batch/v1") -> dict[str, Any]:
    return {"template": {"apiVersion": api_version, "kind": kind, "spec": spec}}


def job(pod: Any) -> dict[str, Any]:
    return resource({"template": {"spec": pod}})


ANY = "${trialParameters.x:json}"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (job({**trial(), "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), "volumes: hostPath reaches"),
        (job(context(privileged=True)), "spec.trialResource.template.spec.template.spec.containers.securityContext"),
        (job(context(privileged=ANY)), "privileged and hostProcess are not allowed; remove"),
        (job(context(runAsUser=0)), "use an image with a numeric USER"),
        (job(context(runAsUser=ANY)), "use an image with a numeric USER"),
        (job(trial(securityContext=ANY)), "a placeholder is not allowed in place of a part"),
        (job({**trial(), "volumes": [ANY]}), "a placeholder is not allowed in place of a part"),
        (resource({"template": ANY}), "a placeholder is not allowed in place of a part"),
        (
            job({**trial(), "volumes": [{"name": "v", "image": ANY}]}),
            "a placeholder is not allowed in place of a part",
        ),
        (job(trial(image="evil.example/x")), "evil.example/x is not allowed; images begin with"),
        (job({**trial(), **IMAGE_VOLUME}), "evil.example/payload is not allowed; images begin with"),
        (resource({}, "JobSet", "jobset.x-k8s.io/v1alpha2"), "what a JobSet of jobset.x-k8s.io/v1alpha2 asks for"),
    ],
    ids=lambda part: json.dumps(part)[:90] if isinstance(part, dict) else "",
)
def test_resource_of_trials_beyond_limits_is_refused(judged: Cluster, wanted: dict[str, Any], words: str) -> None:
    said = tried(judged, trialResource=wanted)
    assert words in said, said


@pytest.mark.parametrize(
    "wanted",
    [
        job(trial(image="registry.example/x", args=["${trialParameters.x}"])),
        job(context(runAsUser=1000, privileged=False)),
        resource({"nprocPerNode": "1"}, "PyTorchJob", "kubeflow.org/v1"),
    ],
    ids=json.dumps,
)
def test_an_ordinary_resource_of_trials_passes(judged: Cluster, wanted: dict[str, Any]) -> None:
    assert "created (server dry run)" in tried(judged, trialResource=wanted)


GPU = {"resources": {"nvidia.com/gpu": 1}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"maxTrialHours": None}, "spec.maxTrialHours: give each experiment a budget of 500 at most, or ask for"),
        ({"maxTrialHours": 501}, "spec.maxTrialHours: give each experiment a budget of 500"),
        (GPU, "spec.maxGpuHours: give each experiment a budget of 40.5 at most"),
        ({**GPU, "maxGpuHours": 41}, "spec.maxGpuHours"),
        ({"pod": trial(resources={"limits": {"nvidia.com/mig-1g.5gb": 1}})}, "spec.maxGpuHours"),
    ],
    ids=json.dumps,
)
def test_missing_or_excessive_budget_is_refused(judged: Cluster, spec: dict[str, Any], words: str) -> None:
    said = tried(judged, **spec)
    assert words in said, said


def test_a_budget_within_the_limits_passes(judged: Cluster) -> None:
    assert "created (server dry run)" in tried(judged, maxTrialHours=0.5)
    assert "created (server dry run)" in tried(judged, **GPU, maxGpuHours=40)


@pytest.mark.parametrize(
    "pod",
    [
        None,
        {},
        {"serviceAccountName": "trainer", "priorityClassName": "batch"},
        context(runAsUser=1000, capabilities={"drop": ["ALL"]}),
        {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}], "nodeSelector": {"pool": "gpu"}},
        {"volumes": [{"name": "v", "image": {"reference": "registry.example/data:1"}}]},
    ],
    ids=json.dumps,
)
def test_an_ordinary_template_passes(judged: Cluster, pod: dict[str, Any] | None) -> None:
    assert "created (server dry run)" in tried(judged, pod=pod)


def test_other_namespaces_are_left_alone(judged: Cluster, namespace: Cluster) -> None:
    assert "created (server dry run)" in tried(namespace, pod={"hostNetwork": True})


def test_what_was_there_before_can_still_be_ended(judged: Cluster, cluster: Cluster) -> None:
    label = ["label", "namespace", judged.namespace, "--overwrite"]
    cluster.kubectl(*label, "trialpod.dev/judged=false")
    document = manifest(judged, "old", template={"spec": {"hostNetwork": True}}, suspend=True)
    text = json.dumps(document)
    judged.wait_for(
        lambda: "created" in judged.kubectl("apply", "-f", "-", input=text, check=False), "it is made", 20
    )
    cluster.kubectl(*label, "trialpod.dev/judged=true")
    judged.wait_for(lambda: "hostNetwork" in tried(judged, pod={"hostNetwork": True}), "the policy is for it", 90)
    patch = ["patch", "te", "old", "--type=merge", "-p"]
    assert "patched" in judged.kubectl(*patch, '{"metadata":{"labels":{"a":"b"},"finalizers":null}}')
    assert "hostNetwork" in judged.kubectl(*patch, '{"spec":{"suspend":false}}', check=False)
    judged.kubectl("delete", "te", "old", "--timeout=30s")
