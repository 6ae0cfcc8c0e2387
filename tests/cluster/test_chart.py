"""The chart, rendered by Helm with many values, and installed, upgraded and uninstalled in a real cluster.

Helm and kubectl run through `tools/cluster/exec`, unless the tests do already, or as $TRIALPOD_HELM and
$TRIALPOD_KUBECTL say.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import Cluster
from operator_release import Operator
from testcluster import layout

from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster_ui.serve import SharedOptions

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "trialpod")
INSIDE = os.environ.get("KUBECONFIG") == str(layout.KUBECONFIG)
EXEC = "" if INSIDE else f"{ROOT}/tools/cluster/exec"
HELM = shlex.split(os.environ.get("TRIALPOD_HELM", f"{EXEC} helm"))
KUBECTL = shlex.split(os.environ.get("TRIALPOD_KUBECTL", f"{EXEC} kubectl"))
VERSION = layout.KUBERNETES_VERSION
"""Of Kubernetes, for what is rendered without a cluster."""

pytestmark = pytest.mark.cluster

Document = dict[str, Any]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


def helm(*arguments: str) -> str:
    result = run(*HELM, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def kubectl(*arguments: str) -> str:
    result = run(*KUBECTL, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def sets(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


def template(values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    return _template(*sets(values or {}))


@cache
def _template(*words: str) -> subprocess.CompletedProcess[str]:
    return run(*HELM, "template", "tp", CHART, "--namespace", "tuning", "--kube-version", VERSION, *words)


def render(values: dict[str, Any] | None = None) -> dict[tuple[str, str], Document]:
    """Return what the chart makes, by kind and name; with the namespace, where that is not the release's."""
    result = template(values)
    assert result.returncode == 0, result.stderr
    found: dict[tuple[str, str], Document] = {}
    for document in yaml.safe_load_all(result.stdout):
        if document:
            metadata = document["metadata"]
            place = metadata.get("namespace", "tuning")
            name = metadata["name"] if place == "tuning" else f"{place}/{metadata['name']}"
            assert (document["kind"], name) not in found
            found[document["kind"], name] = document
    return found


def operator(documents: dict[tuple[str, str], Document]) -> Document:
    (container,) = documents["Deployment", "tp-trialpod"]["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def environment(documents: dict[tuple[str, str], Document]) -> dict[str, str]:
    fields = {"metadata.namespace": "tuning", "metadata.name": "pod", "status.podIP": "10.244.1.2"}
    return {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in operator(documents)["env"]
    }


def test_helm_finds_nothing_to_complain_of() -> None:
    helm("lint", CHART, "--strict", "--kube-version", VERSION)


def test_default_release_has_operator_crds_and_roles_only() -> None:
    assert set(render()) == {
        ("CustomResourceDefinition", "tuneexperiments.trialpod.dev"),
        ("CustomResourceDefinition", "tunetrials.trialpod.dev"),
        ("ServiceAccount", "tp-trialpod"),
        ("ClusterRole", "tuning-tp-trialpod"),
        ("ClusterRole", "tuning-tp-trialpod-view"),
        ("ClusterRole", "tuning-tp-trialpod-edit"),
        ("ClusterRole", "tuning-tp-trialpod-admin"),
        ("ClusterRoleBinding", "tuning-tp-trialpod"),
        ("Role", "tp-trialpod-own"),
        ("RoleBinding", "tp-trialpod-own"),
        ("Role", "tp-trialpod-lease"),
        ("RoleBinding", "tp-trialpod-lease"),
        ("Service", "tp-trialpod-reports"),
        ("Deployment", "tp-trialpod"),
        ("Pod", "tp-trialpod-test"),
    }


def test_kubectl_can_apply_what_is_rendered() -> None:
    """Each object says where it belongs: kubectl, unlike Helm, knows no namespace of a release."""
    values = {"ui": {"enabled": True}, "minio": {"enabled": True}, "watchNamespaces": ["a", "b"], "replicas": 2}
    for (kind, name), document in render(values).items():
        everywhere = kind.startswith("Cluster") or kind == "CustomResourceDefinition"
        assert ("namespace" in document["metadata"]) != everywhere, (kind, name)


def test_the_definitions_of_the_chart_are_those_of_the_folder() -> None:
    documents = render()
    for file in (ROOT / "crds").iterdir():
        definition = yaml.safe_load(file.read_text())
        ours = documents["CustomResourceDefinition", definition["metadata"]["name"]]
        assert ours["spec"] == definition["spec"]
        assert ours["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_definitions_can_be_left_out_and_can_go_with_the_release() -> None:
    assert not [name for kind, name in render({"crds.enabled": False}) if kind == "CustomResourceDefinition"]
    definition = render({"crds.keep": False})["CustomResourceDefinition", "tunetrials.trialpod.dev"]
    assert "annotations" not in definition["metadata"]


def test_one_replica_that_meets_the_restricted_standard() -> None:
    documents = render({"minio.enabled": True, "ui.enabled": True})
    assert documents["Deployment", "tp-trialpod"]["spec"]["replicas"] == 1
    for (kind, _), document in documents.items():
        if kind == "Deployment":
            assert document["spec"]["strategy"] == {"type": "Recreate"}
        pod = {"Deployment": lambda each: each["spec"]["template"]["spec"], "Pod": lambda each: each["spec"]}.get(
            kind
        )
        if pod is None:
            continue
        spec = pod(document)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(
            set(volume) - {"name"} <= {"emptyDir", "persistentVolumeClaim"} for volume in spec.get("volumes", [])
        )
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_operator_understands_the_environment_that_it_gets() -> None:
    documents = render()
    options = OperatorOptions.from_environment(environment(documents))
    assert options.namespaces == ()
    assert options.own_namespace == "tuning"
    assert options.service == "tp-trialpod-reports.tuning.svc"
    assert options.default_storage is None
    assert options.log_level == "INFO"
    mounts = {mount["mountPath"] for mount in operator(documents)["volumeMounts"]}
    assert mounts == {options.work_dir, "/tmp"}
    ports = {port["name"]: port["containerPort"] for port in operator(documents)["ports"]}
    assert ports == {"reports": options.report_port, "probes": options.probe_port}
    service = documents["Service", "tp-trialpod-reports"]["spec"]
    assert [port["port"] for port in service["ports"]] == [options.report_port]


def test_defaults_of_experiments_reach_the_operator() -> None:
    storage = {"uri": "s3://b/p", "endpoint": "http://s3:9000", "credentialsSecret": "keys"}
    values = {
        "defaults.image": "train:1",
        "defaults.storage": storage,
        "logLevel": "debug",
        "gpuResource": "amd.com/gpu",
    }
    options = OperatorOptions.from_environment(environment(render(values)))
    assert options.default_image == "train:1"
    assert options.runtime_image.startswith("trialpod:")
    assert options.gpu_resource == "amd.com/gpu"
    assert options.default_storage is not None
    assert options.default_storage.uri == "s3://b/p"
    assert options.default_storage.endpoint == "http://s3:9000"
    assert options.default_storage.credentials_secret == "keys"


def test_bundled_minio_is_default_storage_unless_overridden() -> None:
    documents = render({"minio.enabled": True, "minio.bucket": "mine"})
    options = OperatorOptions.from_environment(environment(documents))
    assert options.default_storage is not None
    assert options.default_storage.uri == "s3://mine/experiments"
    assert options.default_storage.endpoint == "http://tp-trialpod-minio.tuning.svc:9000"
    assert ("Service", "tp-trialpod-minio") in documents
    assert ("Secret", options.default_storage.credentials_secret) in documents
    assert ("PersistentVolumeClaim", "tp-trialpod-minio") in documents
    other = render({"minio.enabled": True, "minio.existingSecret": "own", "minio.persistence.enabled": False})
    assert not [name for kind, name in other if kind in ("Secret", "PersistentVolumeClaim")]
    assert environment(other)["TRIALPOD_DEFAULT_STORAGE_SECRET"] == "own"
    named = render({"minio.enabled": True, "defaults.storage.uri": "s3://elsewhere"})
    assert environment(named)["TRIALPOD_DEFAULT_STORAGE_URI"] == "s3://elsewhere"
    assert "TRIALPOD_DEFAULT_STORAGE_ENDPOINT" not in environment(named)


def test_keys_of_the_bundled_minio_stay_with_its_volume() -> None:
    documents = render({"minio.enabled": True})
    for kind in ("Secret", "PersistentVolumeClaim"):
        assert documents[kind, "tp-trialpod-minio"]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_other_keys_of_the_bundled_minio_need_a_new_pod() -> None:
    def pod(**values: str) -> Document:
        documents = render({"minio.enabled": True, **{f"minio.{key}": value for key, value in values.items()}})
        return documents["Deployment", "tp-trialpod-minio"]["spec"]["template"]  # type: ignore[no-any-return]

    assert pod() == pod(accessKey="trialpod")
    assert pod() != pod(secretKey="another-key")
    assert pod() != pod(accessKey="another")


def test_only_token_reviews_are_cluster_wide_with_namespaces() -> None:
    everywhere = render()["ClusterRole", "tuning-tp-trialpod"]["rules"]
    documents = render({"watchNamespaces": ["a", "b"]})
    role = documents["ClusterRole", "tuning-tp-trialpod"]
    assert role["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    ]
    for namespace in "ab":
        assert [*role["rules"], *documents["Role", f"{namespace}/tuning-tp-trialpod"]["rules"]] == everywhere
        binding = documents["RoleBinding", f"{namespace}/tuning-tp-trialpod"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tp-trialpod", "namespace": "tuning"}]
    assert OperatorOptions.from_environment(environment(documents)).namespaces == ("a", "b")


def test_optional_parts_are_made_when_they_are_asked_for() -> None:
    documents = render({"podDisruptionBudget.enabled": True, "networkPolicy.enabled": True, "minio.enabled": True})
    selector = documents["Deployment", "tp-trialpod"]["spec"]["selector"]
    assert documents["PodDisruptionBudget", "tp-trialpod"]["spec"]["selector"] == selector
    policy = documents["NetworkPolicy", "tp-trialpod"]["spec"]
    assert policy["podSelector"] == selector
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert ("NetworkPolicy", "tp-trialpod-minio") in documents
    assert ("NetworkPolicy", "tp-trialpod-test") in documents
    assert not [name for kind, name in render({"rbac.create": False}) if "Role" in kind]


class TestPage:
    def test_is_off_unless_asked_for(self) -> None:
        assert not [name for _, name in render() if name.endswith("-ui")]
        assert OperatorOptions.from_environment(environment(render())).ui_address == ""

    def test_it_understands_its_environment(self) -> None:
        values = {
            "ui.enabled": True,
            "ui.hosts": ["tune.example.com"],
            "minio.enabled": True,
            "watchNamespaces": ["a"],
        }
        documents = render(values)
        spec = documents["Deployment", "tp-trialpod-ui"]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        options = SharedOptions.from_environment(env)
        assert options.operator.namespaces == ("a",)
        assert options.operator.default_storage is not None
        assert (options.actions, options.session_minutes) == (False, 60)
        address = OperatorOptions.from_environment(environment(documents)).ui_address
        assert address.removeprefix("http://").partition(":")[0] in options.hosts
        assert "tune.example.com" in options.hosts
        assert SharedOptions.from_environment({**env, "TRIALPOD_UI_ACTIONS": "true"}).actions
        assert container["command"] == ["trialpod", "ui", "--shared"]

    def test_its_account_can_only_read(self) -> None:
        documents = render({"ui.enabled": True})
        rules = documents["ClusterRole", "tuning-tp-trialpod-ui"]["rules"]
        verbs = {(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}
        assert verbs == {
            ("tuneexperiments", "get"),
            ("tuneexperiments", "list"),
            ("secrets", "get"),
            ("tokenreviews", "create"),
            ("subjectaccessreviews", "create"),
        }
        some = render({"ui.enabled": True, "watchNamespaces": ["a", "b"]})
        wide = some["ClusterRole", "tuning-tp-trialpod-ui"]["rules"]
        assert {name for rule in wide for name in rule["resources"]} == {"tokenreviews", "subjectaccessreviews"}
        assert [*wide, *some["Role", "b/tuning-tp-trialpod-ui"]["rules"]] == rules

    def test_it_reaches_only_what_the_operator_reaches(self) -> None:
        peers = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
        documents = render(
            {"ui.enabled": True, "ui.from": peers, "networkPolicy.enabled": True, "minio.enabled": True}
        )
        policy = documents["NetworkPolicy", "tp-trialpod-ui"]["spec"]
        assert policy["podSelector"] == documents["Deployment", "tp-trialpod-ui"]["spec"]["selector"]
        assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": peers}]
        assert policy["egress"] == documents["NetworkPolicy", "tp-trialpod"]["spec"]["egress"]
        allowed = documents["NetworkPolicy", "tp-trialpod-minio"]["spec"]["ingress"][0]["from"]
        assert policy["podSelector"] in [each.get("podSelector") for each in allowed]


def test_replicas_share_the_work_behind_one_service() -> None:
    documents = render({"replicas": 2})
    deployment = documents["Deployment", "tp-trialpod"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (2, "RollingUpdate")
    assert "podAntiAffinity" in deployment["template"]["spec"]["affinity"]
    assert OperatorOptions.from_environment(environment(documents)).replicas == 2
    (address,) = [each for each in operator(documents)["env"] if each["name"] == "TRIALPOD_POD_ADDRESS"]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    alone = render()
    leases = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "update", "delete"],
    }
    for made, has in ((documents, True), (alone, False)):
        selector = made["Service", "tp-trialpod-reports"]["spec"]["selector"]
        assert selector == deployment["selector"]["matchLabels"]
        assert (leases in made["Role", "tp-trialpod-own"]["rules"]) is has
    assert OperatorOptions.from_environment(environment(alone)).replicas == 1


def test_images_can_be_named_by_their_digests() -> None:
    digest = f"sha256:{'a' * 64}"
    documents = render({"image.digest": digest, "minio.enabled": True, "minio.image.digest": digest})
    assert operator(documents)["image"] == f"trialpod@{digest}"
    minio = documents["Deployment", "tp-trialpod-minio"]["spec"]["template"]["spec"]
    assert minio["containers"][0]["image"] == f"minio/minio@{digest}"
    assert minio["initContainers"][0]["image"] == f"trialpod@{digest}"


def test_trials_get_a_policy_in_each_of_their_namespaces() -> None:
    values = {"networkPolicy.trials.enabled": True, "networkPolicy.storagePorts": [9000]}
    listed = render(values | {"networkPolicy.trials.namespaces": ["a"]})
    watched = render(values | {"watchNamespaces": ["a", "b"]})
    assert ("NetworkPolicy", "b/tuning-tp-trialpod-trials") in watched
    spec = listed["NetworkPolicy", "a/tuning-tp-trialpod-trials"]["spec"]
    assert spec["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "trialpod-trial"}
    ports = [port["port"] for rule in spec["egress"] for port in rule.get("ports", [])]
    assert ports == [53, 53, 8443, 9000]


def test_release_test_asks_for_the_permissions_of_its_roles() -> None:
    kinds = [
        {"apiVersion": "batch/v1", "kind": "Job", "resource": "jobs"},
        {"apiVersion": "v1", "kind": "Pod", "resource": "pods"},
    ]
    documents = render({"watchNamespaces": ["a"], "replicas": 2, "trialKinds": kinds})
    (container,) = documents["Pod", "tp-trialpod-test"]["spec"]["containers"]
    permissions = json.loads({each["name"]: each["value"] for each in container["env"]}["PERMISSIONS"])
    asked = [rule for each in permissions for rule in each["rules"]]
    given = [
        *documents["Role", "a/tuning-tp-trialpod"]["rules"],
        *documents["ClusterRole", "tuning-tp-trialpod"]["rules"],
        *documents["Role", "tp-trialpod-own"]["rules"],
    ]
    assert asked == given
    assert {each["namespace"] for each in permissions} == {"a", "", "tuning"}


def test_long_names_stay_valid() -> None:
    for kind, name in render({"fullnameOverride": "a" * 45, "minio.enabled": True}):
        assert len(name) <= 63 or kind.startswith("ClusterRole")


SCOPED = {"uri": "s3://b/{namespace}", "operatorSecret": "k"}


@pytest.mark.parametrize("duration", ["15m", "12h", "1h30m", "900s", "", "08h"])
def test_storage_that_the_chart_accepts_starts_the_operator(duration: str) -> None:
    values = {"defaults.storage": SCOPED, "defaults.storage.sts.duration": duration}
    options = OperatorOptions.from_environment(environment(render(values)))
    assert options.storage_keys_dir
    assert 900 <= options.scoped.duration_seconds <= 43200


def test_default_storage_can_be_that_of_a_plug_in() -> None:
    rendered = environment(render({"defaults.storage.uri": "mem://place"}))
    assert rendered["TRIALPOD_DEFAULT_STORAGE_URI"] == "mem://place"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"replicas": 0}, "replicas"),
        ({"networkPolicy.trials.enabled": True}, "networkPolicy.trials.namespaces"),
        ({"admissionPolicy.actions": []}, "actions"),
        ({"image.digest": "sha256:1"}, "digest"),
        ({"watchNamespaces": ["A"]}, "watchNamespaces"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"minio.secretKey": "short"}, "secretKey"),
        ({"defaults.storage.uri": "/data"}, "uri"),
        ({"defaults.storage.uri": "file://data"}, "uri"),
        ({"defaults.storage.uri": "s3://b/p?endpoint=http://s3"}, "defaults.storage.uri has a query"),
        ({"defaults.storage": {"uri": "s3://b/p", "operatorSecret": "k"}}, "a defaults.storage.uri with {namespace}"),
        ({"defaults.storage.operatorSecret": "k", "minio.enabled": True}, "a defaults.storage.uri with {namespace}"),
        (
            {"defaults.storage": {**SCOPED, "credentialsSecret": "s"}},
            "operatorSecret and defaults.storage.credentials",
        ),
        ({"defaults.storage.sts.duration": "14m59s"}, "sts.duration is 14m59s; stores allow 15m to 12h"),
        ({"defaults.storage.sts.duration": "12h1s"}, "sts.duration is 12h1s; stores allow 15m to 12h"),
        ({"defaults.storage.sts.duration": "30m1h"}, "duration"),
        ({"serviceAccount.create": False}, "serviceAccount.name is needed"),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], fault: str) -> None:
    result = template(values)
    assert result.returncode != 0
    assert fault in result.stderr


@pytest.fixture
def namespace(operator: Operator) -> Iterator[str]:
    """A namespace for a second release; of two that create the CRDs at the same time, Helm refuses one."""
    name = f"chart-{uuid.uuid4().hex[:6]}"  # one that is being deleted cannot be used again
    kubectl("create", "namespace", name)
    # Whatever the chart runs there has to satisfy the strictest of the Pod Security Standards.
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    run(*KUBECTL, "delete", "tuneexperiments", "--all", "-n", name, "--timeout=20s")
    run(*HELM, "uninstall", "tp", "--namespace", name)
    run(*KUBECTL, "delete", "namespace", name, "--wait=false")


def can(account: str, verb: str, resource: str, namespace: str) -> bool:
    who = f"--as=system:serviceaccount:{account}"
    return run(*KUBECTL, "auth", "can-i", verb, resource, who, "-n", namespace).stdout.strip() == "yes"


def test_install_upgrade_and_uninstall_in_a_cluster(namespace: str) -> None:
    values = {"watchNamespaces": [namespace], "minio.enabled": True, "networkPolicy.enabled": True}
    words = ["tp", CHART, "--namespace", namespace, "--take-ownership"]
    account = f"{namespace}:tp-trialpod"
    notes = helm("install", *words, *sets(values))
    assert f"serves the namespaces {namespace}" in notes
    assert can(account, "create", "pods", namespace)
    assert can(account, "get", "secrets", namespace)
    assert not can(account, "list", "secrets", namespace)
    assert not can(account, "create", "pods", "default")
    assert can(account, "create", "tokenreviews.authentication.k8s.io", "default")
    path = "jsonpath={.data.AWS_SECRET_ACCESS_KEY}"
    password = kubectl("get", "secret", "tp-trialpod-minio", "-n", namespace, "-o", path)
    helm("upgrade", *words, *sets(values | {"logLevel": "debug"}))
    assert kubectl("get", "secret", "tp-trialpod-minio", "-n", namespace, "-o", path) == password
    helm("uninstall", "tp", "--namespace", namespace)
    left = kubectl(
        "get", "all,sa,role,rolebinding,networkpolicy", "-n", namespace, "-l", "app.kubernetes.io/instance=tp"
    )
    assert "deployment" not in left
    assert kubectl("get", "secret", "tp-trialpod-minio", "-n", namespace, "-o", path) == password
    assert "tuneexperiments.trialpod.dev" in kubectl("get", "crd", "-o", "name")


IMAGES = {
    "image.repository": "docker.io/trialpod/trialpod",
    "image.tag": "test",
    "minio.image.repository": "docker.io/trialpod/minio",
    "minio.image.tag": "test",
}
"""As the test cluster has them."""

EXPERIMENT = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: first}
spec:
  trainable: {source: "def train(config): return {'score': config['x']}"}
  searchSpace: {x: {uniform: [0, 1]}}
  metric: score
  mode: max
  numSamples: 2
"""


def test_release_with_own_minio_completes_an_experiment(namespace: str, tmp_path: Path) -> None:
    values = IMAGES | {
        "watchNamespaces": [namespace],
        "minio.enabled": True,
        "minio.persistence.enabled": False,
        "defaults.image": "docker.io/trialpod/trialpod:test",
    }
    install = ["install", "tp", CHART, "-n", namespace, "--take-ownership", "--wait", "--timeout=120s"]
    installed = run(*HELM, *install, *sets(values))
    assert installed.returncode == 0, installed.stderr + Cluster(namespace).describe_failure()
    helm("test", "tp", "-n", namespace, "--timeout=30s")
    manifest = tmp_path / "experiment.yaml"
    manifest.write_text(EXPERIMENT)
    kubectl("apply", "-n", namespace, "-f", str(manifest))
    kubectl("wait", "te/first", "-n", namespace, "--for=condition=Succeeded", "--timeout=80s")
    path = "jsonpath={.status.trials.progress} {.status.storageUri}"
    assert kubectl("get", "te", "first", "-n", namespace, "-o", path) == "2/2 s3://tune/experiments/first"


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("view", "list", "tuneexperiments.trialpod.dev", True),
        ("view", "create", "tuneexperiments.trialpod.dev", False),
        ("edit", "create", "tuneexperiments.trialpod.dev", True),
        ("edit", "patch", "tunetrials.trialpod.dev", True),
        ("edit", "create", "tunetrials.trialpod.dev", False),
        ("edit", "delete", "tunetrials.trialpod.dev", False),
        ("admin", "delete", "tunetrials.trialpod.dev", True),
    ],
)
def test_the_aggregated_roles_give_what_their_names_say(role: str, verb: str, resource: str, allowed: bool) -> None:
    label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
    below = {"view": ("view",), "edit": ("view", "edit"), "admin": ("view", "edit", "admin")}[role]
    documents = render()
    assert label in documents["ClusterRole", f"tuning-tp-trialpod-{role}"]["metadata"]["labels"]
    rules = [rule for each in below for rule in documents["ClusterRole", f"tuning-tp-trialpod-{each}"]["rules"]]
    name = resource.partition(".")[0]
    assert any(name in rule["resources"] and verb in rule["verbs"] for rule in rules) is allowed
