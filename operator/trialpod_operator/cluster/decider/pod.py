"""Builds the pod of an experiment's decider, from the trials' template and `spec.decider`.

It is like a trial's pod (image, security context, service account, node selectors, volumes, token), without what only
trials need: devices, the storage's keys, other containers, and the request not to be moved. The same arguments give
the same pod.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trialpod import variables
from trialpod_operator.api.models import TuneExperiment, TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import injection, template
from trialpod_operator.cluster.pods.build import (
    DEFAULT_CONTAINER,
    ObjectRef,
    PodOptions,
    identity_volumes,
    set_image,
    set_resources,
    trial_container_of,
)
from trialpod_operator.cluster.pods.template import Json
from trialpod_operator.cluster.shards.assignment import shard_of
from trialpod_operator.experiment.own_code import named_parts

COMMAND = ("python", "-m", "trialpod_operator.decider")
GRACE_SECONDS = 5

DEFAULT_RESOURCES: Mapping[str, str] = {"cpu": "250m", "memory": "1Gi"}


def digest(spec: TuneExperimentSpec) -> str:
    """Return a digest of those fields that a decider's pod is made from."""
    assert spec.decider is not None
    decider = spec.decider
    code = decider.pickle.sha256 if decider.pickle is not None else named_parts(decider)
    data = json.dumps(
        [decider.image or spec.image, spec.template, decider.resources, code], sort_keys=True, default=str
    )
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def build_decider(experiment: TuneExperiment, owner: ObjectRef, number: int, options: PodOptions) -> Json:
    """Return the pod.

    Args:
        experiment: a valid manifest with a decider.
        owner: the TuneExperiment, which will own the pod.
        number: of the decider within the experiment.
        options: what the operator adds.

    Raises:
        TemplateError: the template claims what trialpod needs, or there is no image.
    """
    spec = experiment.spec
    assert spec.decider is not None
    given: Json = copy.deepcopy(dict(spec.template))
    metadata: Json = given.get("metadata") or {}
    pod_spec: Json = given.get("spec") or {}
    container, path = trial_container_of(pod_spec)
    for key in ("command", "args", "resources", "livenessProbe", "readinessProbe", "startupProbe", "ports"):
        container.pop(key, None)
    pod_spec["containers"] = [container]
    pod_spec.pop("resourceClaims", None)
    pod_spec.pop("activeDeadlineSeconds", None)
    path = "spec.template.spec.containers[0]" if path.endswith("]") else path
    set_image(container, spec.decider.image or spec.image, options.default_image, path)
    asked = {key: str(value) for key, value in spec.decider.resources.items()}
    set_resources(container, {**DEFAULT_RESOURCES, **asked})
    injected = injection.wanted(spec, container, options.default_image, options.runtime_image)
    container["command"] = list((*injection.FOR_PYTHON, COMMAND[-1]) if injected else COMMAND)
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    template.merge_env(container, _environment(owner, options), _defaults(), path)
    volumes, mounts = identity_volumes()
    template.add_mounts(container, mounts, path)
    if injected:
        injection.inject(pod_spec, container, options.runtime_image, path)
    template.add_volumes(pod_spec, volumes)
    template.restrict(pod_spec)
    pod_spec["restartPolicy"] = "Never"
    pod_spec["terminationGracePeriodSeconds"] = GRACE_SECONDS
    pod_spec.setdefault("automountServiceAccountToken", False)
    pod_spec.setdefault("enableServiceLinks", False)
    ours = {
        names.MANAGED_BY_LABEL: names.MANAGER,
        names.NAME_LABEL: names.TRIAL_POD_NAME,
        names.EXPERIMENT_LABEL: experiment.name,
        names.ROLE_LABEL: names.DECIDER_ROLE,
        names.SHARD_LABEL: str(shard_of(owner.uid)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.decider_name(experiment.name, number),
            "namespace": owner.namespace,
            "labels": template.merge_labels(experiment.metadata.labels, metadata.get("labels") or {}, ours),
            "annotations": {
                DEFAULT_CONTAINER: container["name"],
                names.SPEC_ANNOTATION: digest(spec),
                **template.own_annotations(metadata),
                names.CONTAINER_ANNOTATION: container["name"],
            },
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.EXPERIMENT_KIND,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": pod_spec,
    }


def _environment(owner: ObjectRef, options: PodOptions) -> list[Json]:
    values = {
        variables.ADDRESS: options.address,
        variables.EXPERIMENT: f"{owner.namespace}/{owner.name}",
        variables.TOKEN_FILE: names.TOKEN_FILE,
        variables.CA_FILE: names.CA_FILE,
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _defaults() -> list[Json]:
    values: dict[str, Any] = {
        "HOME": names.WORK_DIR,
        "TMPDIR": names.WORK_DIR,
        "PYTHONUNBUFFERED": "1",
        # One CPU is plenty for most deciders; libraries that start a thread for each core of the node are slow on it.
        "OMP_NUM_THREADS": "1",
    }
    return [{"name": name, "value": value} for name, value in values.items()]
