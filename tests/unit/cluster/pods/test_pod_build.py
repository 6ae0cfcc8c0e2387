"""The pod of an attempt: what trialpod adds, what a template may say, and what it may not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from cluster_objects import EXPERIMENT, OPTIONS, TRIAL, experiment, pod_for, terminated

from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.build import PodOptions, build_pod, grace_seconds
from trialpod_operator.cluster.pods.reading import trial_container
from trialpod_operator.cluster.pods.template import TemplateError
from trialpod_operator.cluster.pods.terminated import read_termination
from trialpod_operator.cluster.shards.assignment import shard_of


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def _env(pod: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable for variable in _container(pod)["env"]}


def test_the_pod_of_a_bare_manifest_has_all_that_a_trial_needs() -> None:
    pod = pod_for(experiment(labels={"team": "vision"}))
    metadata, spec, container = pod["metadata"], pod["spec"], _container(pod)
    assert (metadata["name"], metadata["namespace"]) == ("digits-d75de-00001-3", "team")
    assert metadata["labels"] == {
        "team": "vision",
        "app.kubernetes.io/managed-by": "trialpod",
        "app.kubernetes.io/name": "trialpod-trial",
        "trialpod.dev/experiment": "digits",
        "trialpod.dev/trial-id": "d75de_00001",
        "trialpod.dev/attempt": "3",
        "trialpod.dev/shard": str(shard_of(EXPERIMENT.uid)),
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TuneTrial", "t-uid", True)
    assert owner["blockOwnerDeletion"] is True
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 30
    assert (container["name"], container["image"]) == ("trial", "trialpod/trial:1")
    assert container["command"] == ["python", "-m", "trialpod.runner.pod"]
    env = _env(pod)
    assert env["TRIALPOD_EXPERIMENT"]["value"] == "team/digits"
    assert env["TRIALPOD_RUNNER"]["value"] == "d75de_00001/3"
    assert env["TRIALPOD_NODE_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/var/run/trialpod", "/trialpod"}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("reused", [False, True])
def test_its_container_is_found_behind_an_injected_one(rank: int, reused: bool) -> None:
    container = {"name": "main", "image": "r/train:1"}
    annotations = {"kubectl.kubernetes.io/default-container": "other"}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    workers = {"workers": {"replicas": 1}} if rank else {}
    pod = pod_for(experiment(template=template, reusePods=reused, **workers), rank=rank)
    pod["metadata"] |= {"uid": "p-uid", "resourceVersion": "1"}
    pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "mesh:1"})
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "proxy", "state": {"running": {}}},
            {"name": "main", "state": terminated(137, "OOMKilled")},
        ],
    }
    cache = ObjectCache()
    cache.update_pod(pod, deleted=False)
    (seen,) = cache.pods("team/digits")
    assert trial_container(seen)["name"] == "main"
    ending = read_termination(seen)
    assert ending is not None
    assert ending.reason == "OOMKilled"


def test_identity_is_a_token_for_trialpod_with_its_ca() -> None:
    (identity, _) = pod_for(experiment())["spec"]["volumes"]
    token, authority = identity["projected"]["sources"]
    assert token["serviceAccountToken"] == {"audience": "trialpod.dev", "expirationSeconds": 3600, "path": "token"}
    assert authority["configMap"]["name"] == "trialpod-ca"


def test_the_pod_passes_the_restricted_standard() -> None:
    pod = pod_for(experiment(template={"spec": {"initContainers": [{"name": "fetch", "image": "f"}]}}))
    assert pod["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
    for container in [_container(pod), *pod["spec"]["initContainers"]]:
        assert container["securityContext"] == {
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
        }


def test_storage_keys_and_code_are_mounted_for_the_runner() -> None:
    reference = {"name": "code", "key": "my-train.py", "entrypoint": "pkg.train:Digits"}
    pod = pod_for(
        experiment(storage={"uri": "s3://tune", "credentialsSecret": "minio"}, trainable={"configMapRef": reference})
    )
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["trialpod-storage"]["secret"] == {"secretName": "minio"}
    assert volumes["trialpod-code"]["configMap"]["items"] == [{"key": "my-train.py", "path": "pkg/train.py"}]
    places = {mount["name"]: mount["mountPath"] for mount in _container(pod)["volumeMounts"]}
    assert places["trialpod-storage"] == "/var/run/trialpod-storage"
    assert places["trialpod-code"] == "/var/run/trialpod-code"


def test_resources_set_requests_and_limits_over_template() -> None:
    template = {"spec": {"containers": [{"name": "t", "resources": {"requests": {"cpu": "1000m", "x.io/a": 1}}}]}}
    pod = pod_for(experiment(resources={"cpu": 1, "memory": "2Gi", "gpu": 2}, template=template))
    assert _container(pod)["resources"] == {
        "requests": {"cpu": "1", "x.io/a": 1, "memory": "2Gi", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "2"},
    }


def test_scheduler_resources_replace_those_of_the_manifest() -> None:
    pod = pod_for(experiment(resources={"cpu": 1}), resources={"cpu": 1.5, "memory": 1.5e9, "nvidia.com/gpu": 1.0})
    assert _container(pod)["resources"]["limits"] == {"cpu": "1500m", "memory": "1500000000", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize("resources", [{"gpu": "500m"}, {"nvidia.com/gpu": "0.5"}, {"gpu": 1, "nvidia.com/gpu": 1}])
def test_shares_of_a_device_are_refused(resources: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match=r"spec\.resources"):
        pod_for(experiment(resources=resources))


def test_shortcut_image_precedes_template_and_default() -> None:
    template = {"spec": {"containers": [{"name": "t", "image": "mine"}]}}
    assert _container(pod_for(experiment(template=template)))["image"] == "mine"
    assert _container(pod_for(experiment(template=template, image="short")))["image"] == "short"
    with pytest.raises(TemplateError, match=r"spec\.image"):
        build_pod(experiment(), EXPERIMENT, TRIAL, "d75de_00001", 1, PodOptions(address="https://a"))


def test_container_named_trial_runs_it_and_sidecars_stay() -> None:
    sidecar = {"name": "side", "image": "s", "securityContext": {"runAsUser": 5}}
    template = {"spec": {"containers": [sidecar, {"name": "trial", "args": ["--fast"]}]}}
    side, trial = pod_for(experiment(template=template, image="i"))["spec"]["containers"]
    assert "env" not in side
    assert "volumeMounts" not in side
    assert (trial["image"], trial["args"]) == ("i", ["--fast"])
    assert "command" not in trial


def test_what_the_template_says_of_scheduling_and_queues_is_kept() -> None:
    spec = {
        "schedulingGates": [{"name": "example.com/gate"}],
        "priorityClassName": "low",
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "one-gpu"}],
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 120,
    }
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "p"}
    template = {"metadata": {"labels": labels, "finalizers": ["a/b"], "name": "ignored"}, "spec": spec}
    manifest = experiment(template=template)
    pod = pod_for(manifest)
    assert {key: pod["spec"][key] for key in spec} == spec
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["finalizers"] == ["a/b"]
    assert pod["metadata"]["name"] == "digits-d75de-00001-3"
    assert grace_seconds(manifest.spec) == 120


def test_pods_are_not_evicted_by_autoscalers_by_default() -> None:
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    assert pod_for(experiment())["metadata"]["annotations"][key] == "false"
    template = {"metadata": {"annotations": {key: "true"}}}
    assert pod_for(experiment(template=template))["metadata"]["annotations"][key] == "true"


def test_template_variables_win_except_for_the_identity() -> None:
    env = [{"name": "TMPDIR", "value": "/scratch"}, {"name": "A", "value": "$(POD_NAME)"}]
    pod = pod_for(experiment(template={"spec": {"containers": [{"name": "t", "env": env}]}}))
    order = [variable["name"] for variable in _container(pod)["env"]]
    assert _env(pod)["TMPDIR"]["value"] == "/scratch"
    assert order.count("TMPDIR") == 1
    assert order.index("POD_NAME") < order.index("A")


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"volumes": [{"name": "trialpod-work", "emptyDir": {}}]}}, "spec.template.spec.volumes[0].name"),
        ({"mounts": "/var/run/trialpod/"}, "spec.template.spec.containers[0].volumeMounts[0].mountPath"),
        ({"mounts": "/run/trialpod/more"}, "spec.template.spec.containers[0].volumeMounts[0].mountPath"),
        ({"mounts": "/trialpod"}, "spec.template.spec.containers[0].volumeMounts[0].mountPath"),
        ({"env": "TRIALPOD_RUNNER"}, "spec.template.spec.containers[0].env[0].name"),
        (
            {"metadata": {"labels": {"trialpod.dev/attempt": "9"}}},
            "spec.template.metadata.labels[trialpod.dev/attempt]",
        ),
        (
            {"metadata": {"labels": {"trialpod.dev/role": "decider"}}},
            "spec.template.metadata.labels[trialpod.dev/role]",
        ),
        *(
            (
                {"metadata": {"annotations": {f"trialpod.dev/{name}": "x"}}},
                f"spec.template.metadata.annotations[trialpod.dev/{name}]",
            )
            for name in ("made-for", "log-kept", "pod-spec", "container")
        ),
    ],
)
def test_a_template_that_claims_what_trialpod_needs_is_refused(template: dict[str, Any], path: str) -> None:
    container: dict[str, Any] = {"name": "t"}
    if "mounts" in template:
        container["volumeMounts"] = [{"name": "mine", "mountPath": template.pop("mounts")}]
    if "env" in template:
        container["env"] = [{"name": template.pop("env"), "value": "x"}]
    template.setdefault("spec", {})["containers"] = [container]
    with pytest.raises(TemplateError) as caught:
        pod_for(experiment(template=template))
    assert caught.value.path == path


def test_data_may_be_mounted_inside_the_work_folder() -> None:
    mounts = [{"name": "data", "mountPath": "/trialpod/data"}]
    template = {"spec": {"containers": [{"name": "t", "volumeMounts": mounts}], "volumes": [{"name": "data"}]}}
    assert _container(pod_for(experiment(template=template)))["volumeMounts"][0] == mounts[0]


def test_building_changes_no_argument_and_is_repeatable() -> None:
    template = {"spec": {"containers": [{"name": "t", "env": [{"name": "A"}]}], "volumes": [{"name": "v"}]}}
    manifest = experiment(template=template, resources={"cpu": 2})
    before = copy.deepcopy(template)
    first = pod_for(manifest)
    first["spec"]["containers"][0]["env"].clear()
    assert template == before
    assert json.dumps(pod_for(manifest)) == json.dumps(pod_for(manifest))
    assert json.dumps(pod_for(manifest)) != json.dumps(pod_for(manifest, 4))
    assert OPTIONS.address == "https://trialpod.trialpod-system.svc:8443"


WORKERS = {"replicas": 2, "resources": {"nvidia.com/gpu": 8}}


def test_worker_differs_in_name_rank_and_resources() -> None:
    manifest = experiment(workers=WORKERS, resources={"cpu": 2})
    head, worker = pod_for(manifest), pod_for(manifest, rank=2)
    assert (head["metadata"]["name"], worker["metadata"]["name"]) == (
        "digits-d75de-00001-3",
        "digits-d75de-00001-3-w2",
    )
    assert head["metadata"]["labels"]["trialpod.dev/rank"] == "0"
    assert worker["metadata"]["labels"]["trialpod.dev/rank"] == "2"
    assert "TRIALPOD_RANK" not in _env(head)
    assert _env(worker)["TRIALPOD_RANK"]["value"] == "2"
    assert _container(head)["resources"]["limits"] == {"cpu": "2"}
    assert _container(worker)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert worker["metadata"]["ownerReferences"] == head["metadata"]["ownerReferences"]


def test_workers_inherit_head_unless_they_have_resources() -> None:
    manifest = experiment(workers={"replicas": 1}, resources={"cpu": 2})
    assert _container(pod_for(manifest, rank=1))["resources"] == _container(pod_for(manifest))["resources"]
    assert manifest.spec.resource_amounts == {"cpu": 4.0}


def test_the_pods_of_a_trial_in_a_queue_are_a_pod_group_of_kueue() -> None:
    template = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}
    for rank in range(3):
        metadata = pod_for(experiment(workers=WORKERS, template=template), rank=rank)["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/pod-group-name"] == "digits-d75de-00001-3"
        assert metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
        assert metadata["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"
    assert "kueue.x-k8s.io/pod-group-name" not in pod_for(experiment(template=template))["metadata"]["labels"]


def test_the_longest_names_of_workers_are_host_names() -> None:
    manifest = experiment(workers={"replicas": 999})
    name = pod_for(manifest, rank=999)["metadata"]["name"]
    assert len(name) - len("digits") + 40 + len("99") <= 63


def test_reusable_pod_is_labelled_with_purpose_and_class() -> None:
    def shape(trial_id: str = "d75de_00001", resources: Any = None, **spec: Any) -> str | None:
        pod = build_pod(
            experiment(reusePods=True, **spec), EXPERIMENT, TRIAL, trial_id, 1, OPTIONS, resources=resources
        )
        annotations = pod["metadata"]["annotations"]
        assert annotations.get("trialpod.dev/made-for") in (None, f"{trial_id}/1")
        found: str | None = annotations.get("trialpod.dev/shape")
        return found

    assert shape() is not None
    assert shape() == shape("d75de_00007")
    others = [
        shape(resources={"cpu": 2}),
        shape(image="other:1"),
        shape(template={"spec": {"containers": [{"name": "trial", "env": [{"name": "A", "value": "1"}]}]}}),
        shape(template={"metadata": {"labels": {"team": "a"}}}),
    ]
    assert len({shape(), *others}) == 5
    assert shape(workers={"replicas": 1}) is None
    assert shape(template={"spec": {"activeDeadlineSeconds": 60}}) is None


def test_grace_period_that_each_trial_fills_in_is_the_default() -> None:
    pod = {"terminationGracePeriodSeconds": "${trialParameters.x=60:json}", "containers": [{"name": "trial"}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    assert grace_seconds(experiment(trialResource={"template": job}).spec) == 30.0
