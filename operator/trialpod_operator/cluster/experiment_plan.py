"""The plan of one experiment in a cluster, from its manifest, its storage and what is stored there.

Pure, but for the earlier experiments that are read before the first start; so the first plan is made in a thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod.storage.registry import open_storage
from trialpod.tune.shipping.stored_objects import FOLDER
from trialpod_operator.api.models import TrainableSpec, TuneExperiment, TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.config_map_code import CODE
from trialpod_operator.cluster.earlier_experiments import EarlierExperiments
from trialpod_operator.cluster.pods.build import grace_seconds, module_file
from trialpod_operator.cluster.storage_access import StorageLocation
from trialpod_operator.experiment.decisions.stand_ins import FollowedScheduler, FollowedSearch
from trialpod_operator.experiment.definition import differences
from trialpod_operator.experiment.plan import (
    DecidedElsewhere,
    ExperimentPlan,
    RemoteStorage,
    plan_from_manifest,
    reference_to,
)
from trialpod_operator.experiment.stored import fixed_changes
from trialpod_operator.experiment.warm_start import lessons_in

TRAINABLE_NAME = "trainable_name"
"""Key of the stored document: the name in the directories of trials, once the Trainable was corrected."""


def make_plan(
    experiment: TuneExperiment,
    location: StorageLocation,
    namespace: str,
    stored: Mapping[str, Any] | None,
    code: str | None,
    deciding_code: Callable[[], bytes] = bytes,
) -> ExperimentPlan:
    """Return the plan.

    Args:
        experiment: the manifest.
        location: of the experiment in its storage.
        namespace: of the experiment.
        stored: the document that an earlier start stored there, None when there is none.
        code: of the Trainable, where that is in a ConfigMap.
        deciding_code: returns the contents of the file with the decider's code.

    Raises:
        InvalidInputError: another experiment is stored there, or an earlier one that it names teaches nothing.
        StorageError: an earlier one cannot be read.
    """
    if stored is not None:
        refuse_other(experiment, namespace, stored)
    earlier = EarlierExperiments(location.uri, location.own, namespace)
    plan = plan_from_manifest(
        experiment, Path("/"), stored, trainable=_trainable(experiment.spec, code), earlier=earlier
    )
    document = {**plan.document, "storage": location.uri, "namespace": namespace}
    settings = plan.settings
    if stored is not None and isinstance(name := stored.get(TRAINABLE_NAME), str):
        document[TRAINABLE_NAME] = name
        settings = msgspec.structs.replace(settings, trainable_name=name)
    if code is not None:
        document[CODE] = code
    if (decider := experiment.spec.decider) is not None:
        decided = DecidedElsewhere(
            code=deciding_code,
            seed=int(document["seed"]),
            decision_timeout_s=decider.decision_timeout_seconds,
            suggestion_timeout_s=decider.suggestion_timeout_seconds,
            read_value=partial(_read_value, location),
            lessons=lessons_in(document),
        )
        plan = dataclasses.replace(
            plan,
            search=FollowedSearch(document["total"], experiment.spec.samples),
            scheduler=FollowedScheduler(),
            stopper=None,
            decided=decided,
        )
    return dataclasses.replace(
        plan,
        settings=settings,
        remote=RemoteStorage(uri=location.uri, options=location.pods),
        grace_s=grace_seconds(experiment.spec),
        document=document,
    )


def _read_value(location: StorageLocation, name: str, start: int, length: int) -> bytes:
    return open_storage(location.uri, location.own).read_range(f"{TRIALPOD_DIR}/{FOLDER}/{name}", start, length)


def refuse_other(experiment: TuneExperiment, namespace: str, stored: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if another experiment is stored than this one, or it was started differently."""
    storage = experiment.spec.storage
    where = f"{storage.uri.rstrip('/')}/{experiment.name}" if storage is not None else ""
    if stored.get("namespace", namespace) != namespace:
        raise InvalidInputError(
            f"{where} holds an experiment of namespace {stored['namespace']}; "
            "use another spec.storage.uri or metadata.name"
        )
    before = (stored.get("manifest") or {}).get("spec", {})
    changed = fixed_changes(before, msgspec.to_builtins(experiment)["spec"])
    if before and changed:
        raise InvalidInputError(
            f"{where} holds an earlier experiment of this name whose {', '.join(changed)} "
            f"{'are' if len(changed) > 1 else 'is'} different; give this one another metadata.name, or delete "
            "the stored one (spec.storage.deletionPolicy: Delete does that together with the resource)"
        )


def with_stored_trainable(experiment: TuneExperiment, document: Mapping[str, Any]) -> TuneExperiment:
    """Return an experiment with the Trainable of its stored document; the same object where that is no other one."""
    stored = ((document.get("manifest") or {}).get("spec") or {}).get("trainable")
    try:
        trainable = msgspec.convert(stored, TrainableSpec)
    except msgspec.ValidationError:
        return experiment  # of another version; whether it is the same one is judged by all fields
    if trainable == experiment.spec.trainable:
        return experiment
    return msgspec.structs.replace(experiment, spec=msgspec.structs.replace(experiment.spec, trainable=trainable))


def trainable_change(before: TuneExperiment, now: TuneExperiment) -> str:
    """Return why a Trainable cannot be changed any more, and what to do."""
    documents = [{"manifest": msgspec.to_builtins(each)} for each in (before, now)]
    found = "; ".join(map(str, differences(*documents))) or "spec.trainable.source: other code"
    return (
        f"{found}: trials have reported results or saved checkpoints with the former one, and keep it; change it "
        "back, or run the new one under another metadata.name"
    )


def _trainable(spec: TuneExperimentSpec, code: str | None) -> TrainableRef:
    trainable = spec.trainable
    if (reference := trainable.config_map_ref) is not None:
        modules = {module_file(reference): code} if code is not None else {}
        return TrainableRef(entrypoint=reference.entrypoint, path=[names.CODE_DIR], modules=modules)
    return reference_to(trainable)
