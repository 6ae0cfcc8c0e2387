"""What a pod takes of a cluster, as the scheduler counts it; and the TuneTrial of a trial.

The rule is Kubernetes' own (docs: "Resource sharing within containers", and KEP-753 for sidecars): containers and
sidecars together, or the init container that needs most where that is more, and the overhead of the runtime class.
Requests count; where only a limit is given, the API server has made it the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.quantity import quantity_to_float
from trialpod_operator.cluster import names
from trialpod_operator.cluster.json_values import bounded, json_safe
from trialpod_operator.cluster.pods.build import ObjectRef
from trialpod_operator.cluster.pods.template import copied_labels
from trialpod_operator.cluster.shards.assignment import shard_of
from trialpod_operator.engine.trial import Trial

Amounts = dict[str, float]

MAX_RESOURCES = 16
"""Maximum number of resources of a pod that are distinguished, the first ones by name."""


def pod_resources(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod takes: cores, bytes and devices, without what it takes nothing of.

    Args:
        pod: as the API server shows it.
    """
    spec = pod.get("spec") or {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _requests(container.get("resources"))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asked)
            asked = {}
        _raise(peak, _sum(sidecars, asked))
    total = dict(sidecars)
    for container in spec.get("containers") or ():
        _add(total, _requests(container.get("resources")))
    _raise(total, peak)
    total |= _requests(spec.get("resources"))  # of the pod as a whole, where that is given
    _add(total, _amounts(spec.get("overhead") or {}))
    return {name: total[name] for name in sorted(total)[:MAX_RESOURCES] if total[name] > 0}


def total_resources(pods: Iterable[Mapping[str, Any]]) -> Amounts:
    """Return what pods take together."""
    total: Amounts = {}
    for pod in pods:
        _add(total, pod_resources(pod))
    return total


def _requests(resources: Any) -> Amounts:
    given = resources or {}
    return _amounts({**(given.get("limits") or {}), **(given.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    found: Amounts = {}
    for name, value in quantities.items():
        try:
            found[name] = quantity_to_float(value)
        except InvalidInputError:  # the API server would not have taken it
            continue
    return found


def _sum(*parts: Amounts) -> Amounts:
    total: Amounts = {}
    for part in parts:
        _add(total, part)
    return total


def _add(total: Amounts, more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def _raise(total: Amounts, least: Amounts) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0.0), amount)


MAX_PARAMS = 64 * 1024
"""Bytes of parameters that a TuneTrial holds; whole ones are in the experiment's storage (params.json)."""

MAX_TAG = 1024


def build_trial(experiment: TuneExperiment, experiment_ref: ObjectRef, trial: Trial) -> dict[str, Any]:
    """Return the TuneTrial for a trial. It is written once: what changes goes into its status.

    Args:
        experiment: the manifest, whose labels are copied.
        experiment_ref: the TuneExperiment, which will own it.
        trial: the engine's trial.
    """
    tag: str = json_safe(trial.tag)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRIAL_KIND,
        "metadata": {
            "name": names.trial_name(experiment_ref.name, trial.trial_id),
            "namespace": experiment_ref.namespace,
            "labels": {
                **copied_labels(experiment.metadata.labels),
                **names.labels(experiment_ref.name, trial.trial_id),
                names.SHARD_LABEL: str(shard_of(experiment_ref.uid)),
            },
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.EXPERIMENT_KIND,
                    "name": experiment_ref.name,
                    "uid": experiment_ref.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "experiment": experiment_ref.name,
            "trialId": trial.trial_id,
            "index": trial.index,
            "tag": tag if len(tag) <= MAX_TAG else f"{tag[: MAX_TAG - 3]}...",
            "params": bounded(trial.shown_config, MAX_PARAMS),
        },
    }
