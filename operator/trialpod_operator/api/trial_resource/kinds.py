"""The kinds that are known: where the pod template is, and what says that an object has succeeded or failed.

Any other kind works too when the manifest says these three. What is here was read from the kinds' own definitions:
batch/v1, jobset.x-k8s.io, kubeflow.org (training-operator 1.8), trainer.kubeflow.org, ray.io (KubeRay 1.5) and
argoproj.io (Argo Workflows 3.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.trial_resource.conditions import Condition, parse_condition
from trialpod_operator.api.trial_resource.field_paths import Segment, parse_path


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is known of a kind.

    Attributes:
        pod_template: path of the template of the pod that runs the trial; "" = it has none, see `why_not`.
        success, failure: conditions.
        resource: the plural under which the API server has it.
        single: paths of numbers that say how many pods the template makes; a trial's template makes one.
        defaults: values at paths that are filled in where the object says nothing.
        echo: reason of a failure that only repeats that the pod ended; the pod says why.
        why_not: why no object of this kind can run a trial, with what to do.
    """

    pod_template: str = ""
    success: str
    failure: str
    resource: str
    single: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    echo: str = ""
    why_not: str = ""


def _kubeflow(replicas: str, role: str, resource: str) -> Kind:
    at = f"spec.{replicas}.{role}"
    return Kind(
        pod_template=f"{at}.template",
        success="status.conditions[type=Succeeded].status == True",
        failure="status.conditions[type=Failed].status == True",
        resource=resource,
        single=(f"{at}.replicas",),
        defaults={f"{at}.restartPolicy": "Never"},
    )


KINDS: Mapping[tuple[str, str], Kind] = {
    ("batch", "Job"): Kind(
        pod_template="spec.template",
        success="status.conditions[type=Complete].status == True",
        failure="status.conditions[type=Failed].status == True || "
        "status.conditions[type=FailureTarget].status == True",
        resource="jobs",
        single=("spec.parallelism", "spec.completions"),
        defaults={"spec.backoffLimit": 0},
        echo="BackoffLimitExceeded",
    ),
    ("jobset.x-k8s.io", "JobSet"): Kind(
        pod_template="spec.replicatedJobs[0].template.spec.template",
        success="status.conditions[type=Completed].status == True",
        failure="status.conditions[type=Failed].status == True",
        resource="jobsets",
        single=(
            "spec.replicatedJobs[0].replicas",
            "spec.replicatedJobs[0].template.spec.parallelism",
            "spec.replicatedJobs[0].template.spec.completions",
        ),
        defaults={"spec.replicatedJobs[0].template.spec.backoffLimit": 0},
    ),
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs", "Master", "pytorchjobs"),
    ("kubeflow.org", "TFJob"): _kubeflow("tfReplicaSpecs", "Chief", "tfjobs"),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgbReplicaSpecs", "Master", "xgboostjobs"),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddleReplicaSpecs", "Master", "paddlejobs"),
    ("kubeflow.org", "MPIJob"): _kubeflow("mpiReplicaSpecs", "Launcher", "mpijobs"),
    ("trainer.kubeflow.org", "TrainJob"): Kind(
        success="status.conditions[type=Complete].status == True",
        failure="status.conditions[type=Failed].status == True",
        resource="trainjobs",
        why_not="the pods of a TrainJob come from its TrainingRuntime, and a TrainJob can add no init container, "
        "command and token to them together; give the JobSet that the runtime describes as the trial's template",
    ),
    ("ray.io", "RayJob"): Kind(
        pod_template="spec.submitterPodTemplate",
        success="status.jobStatus == SUCCEEDED",
        failure="status.jobStatus == FAILED || status.jobDeploymentStatus == Failed",
        resource="rayjobs",
        defaults={"spec.submitterConfig": {"backoffLimit": 0}, "spec.shutdownAfterJobFinishes": True},
    ),
    ("argoproj.io", "Workflow"): Kind(
        pod_template="spec.templates[0]",
        success="status.phase == Succeeded",
        failure="status.phase == Failed || status.phase == Error",
        resource="workflows",
    ),
}
"""By API group ("batch" of "batch/v1") and kind."""


@dataclass(frozen=True, kw_only=True)
class TrialKind:
    """How a manifest's object is handled: what is known of its kind, with what the manifest says itself.

    Attributes:
        api_version, kind: of the object.
        pod_template: path of the template of the pod that runs the trial.
        success, failure: conditions.
        known: what is known of the kind; None for one that is not.
    """

    api_version: str
    kind: str
    pod_template: tuple[Segment, ...]
    success: Condition
    failure: Condition
    known: Kind | None


def group_of(api_version: str) -> str:
    """Return the API group of an apiVersion, "" for the core group."""
    return api_version.rpartition("/")[0]


def find_kind(template: Mapping[str, Any]) -> Kind | None:
    """Return what is known of an object's kind."""
    return KINDS.get((group_of(str(template.get("apiVersion", ""))), str(template.get("kind", ""))))


def trial_kind(
    template: Mapping[str, Any], pod_template: str | None, success: str | None, failure: str | None
) -> TrialKind:
    """Return how an object is handled; what the manifest says goes before what is known.

    Raises:
        InvalidInputError: something is neither said nor known, or cannot be read; `parameter` names the field.
    """
    known = find_kind(template)
    kind, api_version = str(template.get("kind", "")), str(template.get("apiVersion", ""))
    if known is not None and known.why_not and not pod_template:
        raise _wrong("template", f"a {kind} cannot run a trial: {known.why_not}")
    found = {
        "podTemplatePath": pod_template or (known.pod_template if known is not None else ""),
        "successCondition": success or (known.success if known is not None else ""),
        "failureCondition": failure or (known.failure if known is not None else ""),
    }
    for name, text in found.items():
        if not text:
            listed, close = ", ".join(known_kinds()), nearest(kind, known_kinds())
            versions = [f"{group}/..." for (group, other) in KINDS if other == kind]
            if versions or close:
                hint = f"apiVersion {' or '.join(versions)}" if versions else close
                raise _wrong("template", f"{group_of(api_version)} {kind} is not known; did you mean {hint}? {_ELSE}")
            raise _wrong(name, f"is missing, and {kind} is none of the known kinds ({listed}); {_SAY[name]}")
    parsed: dict[str, Any] = {}
    for name, text in found.items():
        try:
            parsed[name] = parse_path(text) if name == "podTemplatePath" else parse_condition(text)
        except InvalidInputError as error:
            raise _wrong(name, str(error)) from None
    return TrialKind(
        api_version=api_version,
        kind=kind,
        pod_template=parsed["podTemplatePath"],
        success=parsed["successCondition"],
        failure=parsed["failureCondition"],
        known=known,
    )


def known_kinds() -> list[str]:
    """Return the names of the kinds that need no paths and conditions."""
    return [kind for (_, kind), known in KINDS.items() if not known.why_not]


_ELSE = "For another kind give podTemplatePath, successCondition and failureCondition"
_SAY = {
    "podTemplatePath": "say where the template of its pod is, such as spec.template",
    "successCondition": "say when it has succeeded, such as status.conditions[type=Succeeded].status == True",
    "failureCondition": "say when it has failed, such as status.conditions[type=Failed].status == True",
}


def _wrong(name: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, parameter=name)
