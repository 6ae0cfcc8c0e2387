"""Builds the pod that runs an attempt, from the experiment's template, its short cuts and what trialpod adds.

Precedence, where two parts say something about the same field:

* `spec.image` and `spec.resources` go before the template (validation refuses templates that contradict them);
* the template goes before trialpod's defaults: security context, grace period, command, annotations, plain variables;
* names, labels, the owner, restartPolicy and the pod's identity (its token, address and trial) are trialpod's alone.

Trial pods ask the cluster autoscaler and Karpenter not to move them (`cluster-autoscaler.kubernetes.io/safe-to-evict:
"false"`, `karpenter.sh/do-not-disrupt: "true"`): moving one to save a node costs the work since its last checkpoint.
The same annotations in the template turn that off.

The pods of a group (`spec.workers`) differ in name, rank and resources only. Where a label sends them to a Kueue
queue, they are a pod group of Kueue's: admitted together or not at all.

The output depends on the arguments alone; equal arguments give equal pods, key by key. Arguments are never changed.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod_operator.api.models import ConfigMapRef, TuneExperiment, TuneExperimentSpec
from trialpod_operator.api.quantity import parse_quantity
from trialpod_operator.api.trial_resource.check import kind_of
from trialpod_operator.api.trial_resource.pod_templates import take
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import injection, template
from trialpod_operator.cluster.pods.pending import QUEUE_LABEL
from trialpod_operator.cluster.pods.template import Json, TemplateError
from trialpod_operator.cluster.shards.assignment import shard_of
from trialpod_operator.cluster.storage_access import StorageRules

COMMAND = ("python", "-m", "trialpod.runner.pod")
GRACE_SECONDS = 30
"""terminationGracePeriodSeconds of a pod whose template has none; Kubernetes' own default."""

IDENTITY_VOLUME = "trialpod-identity"
STORAGE_VOLUME = "trialpod-storage"
CODE_VOLUME = "trialpod-code"
WORK_VOLUME = "trialpod-work"

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

GPU = "gpu"
"""The short name of a whole device, as in Ray; `PodOptions.gpu_resource` says which one."""

POD_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_COUNT = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
"""Unless it is "false", Kueue waits for a replacement of each failed pod, and keeps quota and pods meanwhile."""

_NATIVE = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, kw_only=True)
class ObjectRef:
    """An object of the API server."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """What the operator knows and no manifest says.

    Attributes:
        address: where pods reach the report service, "https://host:port".
        default_image: image of trials whose manifest names none; "" = they are refused.
        runtime_image: an image of trialpod, whose runtime trials in other images get; "" = they bring it.
        gpu_resource: what `gpu` means in `spec.resources`.
        keep_on_node: ask autoscalers not to move trials.
        trial_kinds: kinds whose objects the operator may make, "apiVersion/kind" -> plural.
        storage: says whether pods mount the Secret with the storage's keys.
    """

    address: str
    default_image: str = ""
    runtime_image: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    keep_on_node: bool = True
    trial_kinds: Mapping[str, str] = field(default_factory=dict)
    storage: StorageRules = field(default_factory=StorageRules)


def grace_seconds(spec: TuneExperimentSpec) -> float:
    """Return the grace period of the experiment's pods, from SIGTERM to SIGKILL."""
    template = spec.template
    if spec.trial_resource is not None:
        with contextlib.suppress(InvalidInputError):  # reported where the object is built
            resource = msgspec.to_builtins(spec.trial_resource)
            template = take(resource["template"], kind_of(resource))
    given = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    # A placeholder has another value in each trial.
    return float(given if isinstance(given, int | float) else GRACE_SECONDS)


def build_pod(
    experiment: TuneExperiment,
    experiment_ref: ObjectRef,
    trial_ref: ObjectRef,
    trial_id: str,
    attempt: int,
    options: PodOptions,
    *,
    resources: Mapping[str, int | str | float] | None = None,
    rank: int = 0,
    position: int | None = None,
) -> Json:
    """Return the pod for one attempt.

    Args:
        experiment: a valid manifest.
        experiment_ref: the TuneExperiment.
        trial_ref: the TuneTrial, which will own the pod.
        trial_id: the engine's id of the trial.
        attempt: the attempt that it is made for.
        options: what the operator adds.
        resources: instead of `spec.resources`, for a trial whose scheduler changed them.
        rank: 0 for the attempt's first pod, else the number of one of its workers.
        position: of the container that runs the trial; None = the one with that name, else the first.

    Raises:
        TemplateError: the template claims what trialpod needs, there is no image, or a device is not whole.
    """
    spec = experiment.spec
    given: Json = copy.deepcopy(dict(spec.template))
    metadata: Json = given.get("metadata") or {}
    pod_spec: Json = given.get("spec") or {}
    wanted: Mapping[str, int | str | float] = spec.worker_resources if rank else spec.resources
    amounts = _amounts(wanted if resources is None or rank else resources, options.gpu_resource)

    container, path = trial_container_of(pod_spec, position)
    set_image(container, spec.image, options.default_image, path)
    set_resources(container, amounts)
    given_command = "command" if container.get("command") else "args" if container.get("args") else ""
    injected = injection.wanted(spec, container, options.default_image, options.runtime_image)
    if injected and given_command:
        raise TemplateError(
            f"{path}.{given_command}",
            "is given beside spec.trainable.runtime: injected, which sets what the container runs; remove one",
        )
    if not given_command:
        container["command"] = list(injection.command(spec) if injected else COMMAND)
    # Where a container says nothing before it dies, the end of its output becomes the message of its ending.
    for each in (*template.list_in(pod_spec, "containers"), *(pod_spec.get("initContainers") or ())):
        each.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    fixed, defaults = _environment(experiment_ref, trial_id, attempt, options, rank)
    template.merge_env(container, fixed, defaults, path)

    volumes, mounts = _volumes(spec, options.storage)
    template.add_mounts(container, mounts, path)
    if injected:
        packages = spec.trainable.command is None
        injection.inject(pod_spec, container, options.runtime_image, path, packages=packages)
    template.add_volumes(pod_spec, volumes)
    template.restrict(pod_spec)
    pod_spec["restartPolicy"] = "Never"
    pod_spec.setdefault("automountServiceAccountToken", False)
    pod_spec.setdefault("enableServiceLinks", False)
    pod_spec.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    ours = _metadata(
        experiment, metadata, experiment_ref, trial_ref, trial_id, attempt, options, container["name"], rank
    )
    if reuses_pods(spec):
        ours["annotations"][names.MADE_FOR_ANNOTATION] = names.runner_id(trial_id, attempt)
        ours["annotations"][names.TEMPLATE_HASH_ANNOTATION] = _template_hash(pod_spec, metadata)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": ours, "spec": pod_spec}


def spec_digest(spec: TuneExperimentSpec) -> str:
    """Return a digest of those fields that pods are made from and that may change while an experiment runs."""
    workers = spec.workers.resources if spec.workers is not None else None
    resource = None if spec.trial_resource is None else msgspec.to_builtins(spec.trial_resource)
    parts = [spec.image, spec.resources, spec.template, workers, *([resource] if resource is not None else [])]
    data = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def reuses_pods(spec: TuneExperimentSpec) -> bool:
    """Return whether a pod runs one trial after the other. A deadline holds for each trial's own pod."""
    limited = (spec.template.get("spec") or {}).get("activeDeadlineSeconds") is not None
    return spec.reuse_pods and spec.workers is None and not limited


def _template_hash(pod_spec: Json, metadata: Json) -> str:
    """Return a digest of a pod without what names its trial."""
    spec = copy.deepcopy(pod_spec)
    for container in spec.get("containers") or []:
        if "env" in container:
            container["env"] = [each for each in container["env"] if each.get("name") != variables.RUNNER]
    data = json.dumps([spec, metadata], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def _metadata(
    experiment: TuneExperiment,
    given: Json,
    experiment_ref: ObjectRef,
    trial_ref: ObjectRef,
    trial_id: str,
    attempt: int,
    options: PodOptions,
    container: str,
    rank: int,
) -> Json:
    ours = {
        **names.labels(experiment.name, trial_id),
        names.NAME_LABEL: names.TRIAL_POD_NAME,
        names.SHARD_LABEL: str(shard_of(experiment_ref.uid)),
        names.ATTEMPT_LABEL: str(attempt),
    }
    if experiment.spec.workers is not None:
        ours[names.RANK_LABEL] = str(rank)
    annotations = {DEFAULT_CONTAINER: container, names.SPEC_ANNOTATION: spec_digest(experiment.spec)}
    if options.keep_on_node:
        annotations |= {SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"}
    metadata: Json = {
        "name": names.pod_name(experiment.name, trial_id, attempt, rank),
        "namespace": trial_ref.namespace,
        "labels": template.merge_labels(experiment.metadata.labels, given.get("labels") or {}, ours),
        "annotations": {
            **annotations,
            **template.own_annotations(given),
            names.CONTAINER_ANNOTATION: container,
        },
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.TRIAL_KIND,
                "name": trial_ref.name,
                "uid": trial_ref.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if given.get("finalizers"):
        metadata["finalizers"] = given["finalizers"]
    if experiment.spec.workers is not None and QUEUE_LABEL in metadata["labels"]:
        metadata["labels"][POD_GROUP_LABEL] = names.pod_name(experiment.name, trial_id, attempt)
        metadata["annotations"][POD_GROUP_COUNT] = str(1 + experiment.spec.workers.replicas)
        metadata["annotations"][POD_GROUP_RETRIABLE] = "false"  # another attempt is another group
    return metadata


def trial_container_of(pod_spec: Json, index: int | None = None) -> tuple[Json, str]:
    """Return the trial's container of a template, added if there is none, and its path."""
    containers = template.list_in(pod_spec, "containers")
    index = template.trial_container(pod_spec) if index is None or not containers else index
    if index is None:
        containers.append({"name": names.CONTAINER})
        index = 0
    return containers[index], f"spec.template.spec.containers[{index}]"


def set_image(container: Json, image: str | None, default: str, path: str) -> None:
    """Set a container's image; raise TemplateError where none is named."""
    image = image or container.get("image") or default
    if not image:
        raise TemplateError(
            "spec.image", f"is missing, and so is {path}.image; name an image that has trialpod in it"
        )
    container["image"] = image


def set_resources(container: Json, amounts: Mapping[str, str]) -> None:
    """Set a container's requests and limits."""
    if not amounts:
        return
    template.fill(container, {"resources": {}})
    resources: Json = container["resources"]
    for part in ("requests", "limits"):
        resources[part] = {**(resources.get(part) or {}), **amounts}


def _amounts(resources: Mapping[str, int | str | float], gpu: str) -> dict[str, str]:
    """Return resources as Kubernetes takes them."""
    if GPU in resources and gpu in resources:
        raise TemplateError(f"spec.resources.{GPU}", f"is the same as {gpu}, which is given too; keep one of them")
    amounts = {}
    for name, value in resources.items():
        real = gpu if name == GPU else name
        try:
            amount = parse_quantity(value)
        except InvalidInputError as error:
            raise TemplateError(f"spec.resources.{name}", str(error)) from None
        if real not in _NATIVE and amount.denominator != 1:
            raise TemplateError(
                f"spec.resources.{name}",
                f"{value} is not whole: Kubernetes hands out {real} only as whole devices "
                "(shares of one are the cluster's business: MIG, time-slicing, MPS)",
            )
        if isinstance(value, float):
            amounts[real] = f"{math.ceil(amount * 1000)}m" if real == "cpu" else str(math.ceil(amount))
        else:
            amounts[real] = str(value)
    return amounts


def _environment(
    experiment: ObjectRef, trial_id: str, attempt: int, options: PodOptions, rank: int
) -> tuple[list[Json], list[Json]]:
    def field(name: str, path: str) -> Json:
        return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}

    def plain(name: str, value: str) -> Json:
        return {"name": name, "value": value}

    fixed = [
        plain(variables.ADDRESS, options.address),
        plain(variables.EXPERIMENT, f"{experiment.namespace}/{experiment.name}"),
        plain(variables.RUNNER, names.runner_id(trial_id, attempt)),
        plain(variables.TOKEN_FILE, names.TOKEN_FILE),
        plain(variables.CA_FILE, names.CA_FILE),
        field(variables.NODE_IP, "status.hostIP"),
        *([plain(variables.RANK, str(rank))] if rank else []),
    ]
    defaults = [
        field("POD_NAME", "metadata.name"),
        plain(variables.SCRATCH_DIR, names.WORK_DIR),
        plain("TMPDIR", f"{names.WORK_DIR}/tmp"),
        plain("PYTHONUNBUFFERED", "1"),
    ]
    return fixed, defaults


def identity_volumes() -> tuple[list[Json], list[Json]]:
    """Return the volumes of every pod of ours, and their mounts: its token with what it trusts, and a work folder."""
    token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": names.TOKEN_SECONDS, "path": "token"}
    authority = {"name": names.CA_CONFIG_MAP, "items": [{"key": names.CA_KEY, "path": "ca.crt"}]}
    sources = [{"serviceAccountToken": token}, {"configMap": authority}]
    volumes: list[Json] = [
        {"name": IDENTITY_VOLUME, "projected": {"sources": sources}},
        {"name": WORK_VOLUME, "emptyDir": {}},
    ]
    mounts: list[Json] = [
        {"name": IDENTITY_VOLUME, "mountPath": names.IDENTITY_DIR, "readOnly": True},
        {"name": WORK_VOLUME, "mountPath": names.WORK_DIR},
    ]
    return volumes, mounts


def _volumes(spec: TuneExperimentSpec, rules: StorageRules) -> tuple[list[Json], list[Json]]:
    volumes, mounts = identity_volumes()
    storage = spec.storage
    if storage is not None and storage.credentials_secret and rules.scoped_for(storage) is None:
        volumes.append({"name": STORAGE_VOLUME, "secret": {"secretName": storage.credentials_secret}})
        mounts.append({"name": STORAGE_VOLUME, "mountPath": names.STORAGE_SECRET_DIR, "readOnly": True})
    code = spec.trainable.config_map_ref
    if code is not None:
        items = [{"key": code.key, "path": module_file(code)}]
        # Trials get the code of the start with their work. The mount is for code that reads it by itself.
        volumes.append({"name": CODE_VOLUME, "configMap": {"name": code.name, "items": items, "optional": True}})
        mounts.append({"name": CODE_VOLUME, "mountPath": names.CODE_DIR, "readOnly": True})
    return volumes, mounts


def module_file(code: ConfigMapRef) -> str:
    """Return where below the code folder the ConfigMap's file must be, to be imported as its entrypoint says."""
    return code.entrypoint.partition(":")[0].replace(".", "/") + ".py"
