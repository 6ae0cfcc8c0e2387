"""The TuneTrial that stands for one trial of the engine.

Written once: everything that changes goes into its status. Equal arguments give equal objects.
"""

from __future__ import annotations

from typing import Any

from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names
from trialpod_operator.cluster.json_values import bounded, json_safe
from trialpod_operator.cluster.pods.build import ObjectRef
from trialpod_operator.cluster.pods.template import copied_labels
from trialpod_operator.engine.trial import Trial

MAX_PARAMS = 64 * 1024
"""Bytes of parameters that a TuneTrial holds; whole ones are in the experiment's storage (params.json)."""

MAX_TAG = 1024


def build_trial(experiment: TuneExperiment, experiment_ref: ObjectRef, trial: Trial) -> dict[str, Any]:
    """Return the TuneTrial for a trial.

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
