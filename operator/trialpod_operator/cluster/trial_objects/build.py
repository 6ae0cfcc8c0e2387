"""Builds the object of another kind that runs an attempt (`spec.trialResource`).

Its primary pod's template gets what a trial's pod has: the same builder makes both. The object is named as the
attempt's pod would be and belongs to the TuneTrial. Labels of the template are those of the attempt, so the kind's
controller makes pods that the operator finds; of them the first that asks for work is the attempt's.

The output depends on the arguments alone. Arguments are never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, TrainableError
from trialpod_operator.api.models import TrialResourceSpec, TuneExperiment
from trialpod_operator.api.paths import format_path
from trialpod_operator.api.template_rules import check_outline
from trialpod_operator.api.trial_resource.check import kind_of, primary_container
from trialpod_operator.api.trial_resource.field_paths import find, parse_path, put
from trialpod_operator.api.trial_resource.kinds import TrialKind
from trialpod_operator.api.trial_resource.placeholders import render
from trialpod_operator.api.trial_resource.pod_templates import path_text, put_back, take
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions, build_pod, spec_digest
from trialpod_operator.cluster.pods.template import (
    Json,
    TemplateError,
    TrialTemplateError,
    merge_labels,
    own_annotations,
)

HERE = "spec.trialResource.template"


def kind_for(resource: TrialResourceSpec) -> TrialKind:
    """Return how the object of a valid manifest is handled."""
    return kind_of(msgspec.to_builtins(resource))


def build_object(
    experiment: TuneExperiment,
    experiment_ref: ObjectRef,
    trial_ref: ObjectRef,
    trial_id: str,
    attempt: int,
    config: Mapping[str, Any],
    options: PodOptions,
    *,
    resources: Mapping[str, int | str | float] | None = None,
) -> Json:
    """Return the object for one attempt.

    Args:
        experiment: a valid manifest with `spec.trialResource`.
        experiment_ref: the TuneExperiment.
        trial_ref: the TuneTrial, which will own the object.
        trial_id: the engine's id of the trial.
        attempt: the attempt that it is made for.
        config: the trial's parameters.
        options: what the operator adds.
        resources: instead of `spec.resources`, for a trial whose scheduler changed them.

    Raises:
        TrialTemplateError: the trial lacks a parameter, or its value does not fit the field.
        TemplateError: the pod template claims what trialpod needs.
    """
    spec = experiment.spec
    assert spec.trial_resource is not None
    kind = kind_for(spec.trial_resource)
    name = names.pod_name(experiment.name, trial_id, attempt)
    own = {"Name": name, "Namespace": trial_ref.namespace}
    try:
        item: Json = render(copy.deepcopy(spec.trial_resource.template), config, own)
    except (InvalidInputError, TrainableError) as error:
        raise TrialTemplateError(HERE, str(error)) from None
    try:
        _fill_defaults(item, kind, spec.trial_resource)
        template = take(item, kind)
    except InvalidInputError as error:
        raise TemplateError(HERE, str(error)) from None
    # The manifest was checked with its placeholders: what these have become is of one trial.
    for below, checked in ((path_text(kind), template), ("", {"metadata": item.get("metadata")})):
        for path, message in check_outline(checked):
            raise TrialTemplateError(".".join(filter(None, (HERE, below, format_path(path)))), message)
    containers = (template.get("spec") or {}).get("containers") or []
    as_pods = msgspec.structs.replace(
        experiment, spec=msgspec.structs.replace(spec, template=template, trial_resource=None)
    )
    try:
        pod = build_pod(
            as_pods,
            experiment_ref,
            trial_ref,
            trial_id,
            attempt,
            options,
            resources=resources,
            position=primary_container(containers, spec.trial_resource.primary_container),
        )
    except TemplateError as error:
        raise TemplateError(
            error.path.replace("spec.template", f"{HERE}.{path_text(kind)}", 1), error.reason
        ) from None
    marks = {names.OBJECT_LABEL: name}
    metadata = pod["metadata"]
    template["metadata"] = {"labels": {**metadata["labels"], **marks}, "annotations": metadata["annotations"]}
    template["spec"] = pod["spec"]
    put_back(item, kind, template)
    given = item.get("metadata") or {}
    ours = {**names.labels(experiment.name, trial_id), names.ATTEMPT_LABEL: str(attempt), **marks}
    item["metadata"] = {
        "name": name,
        "namespace": trial_ref.namespace,
        "labels": merge_labels(experiment.metadata.labels, given.get("labels") or {}, ours),
        "annotations": {**own_annotations(given), names.SPEC_ANNOTATION: spec_digest(spec)},
        "ownerReferences": metadata["ownerReferences"],
    }
    return item


def _fill_defaults(item: Json, kind: TrialKind, resource: TrialResourceSpec) -> None:
    if kind.known is None or resource.pod_template_path:
        return
    for text, value in kind.known.defaults.items():
        path = parse_path(text)
        if find(item, path) is None and isinstance(find(item, path[:-1]), Mapping):
            put(item, path, copy.deepcopy(value))


def resource_name(kind: TrialKind, allowed: Mapping[str, str]) -> str:
    """Return the plural of a kind that the operator may use.

    Args:
        kind: of the trials' objects.
        allowed: "apiVersion/kind" -> plural.

    Raises:
        TemplateError: it may not.
    """
    found = allowed.get(f"{kind.api_version}/{kind.kind}")
    if found is not None:
        return found
    plural = kind.known.resource if kind.known is not None else f"{kind.kind.lower()}s"
    listed = ", ".join(sorted(allowed)) or "none"
    raise TemplateError(
        format_path(("spec", "trialResource", "template", "kind")),
        f"the operator may not make objects of {kind.api_version}/{kind.kind} (it may of: {listed}); an admin "
        f"adds {{apiVersion: {kind.api_version}, kind: {kind.kind}, resource: {plural}}} to the chart's trialKinds",
    )
