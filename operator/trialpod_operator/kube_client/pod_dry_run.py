"""Asks the API server whether it would take the pods of an experiment, before there is one: a server-side dry run.

The pod is the one that the operator would create (`cluster/pods/build`), without the owner, and the API server
refuses fields that it does not know. Only those who may create pods get an answer; the operator tells the others.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trialpod.errors import InvalidInputError
from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.document import Document
from trialpod_operator.api.reasons import Reason
from trialpod_operator.api.validation import check_document
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions, build_pod
from trialpod_operator.cluster.pods.reading import PendingReason
from trialpod_operator.cluster.pods.rejected import rejection_reason
from trialpod_operator.cluster.pods.template import TemplateError
from trialpod_operator.kube_client.api import KubeClient
from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

_ADDRESS = "https://trialpod-operator.trialpod-system:8443"
_IMAGE = "trialpod"
"""For a pod that is never started, where the operator's own is not known here."""

_NOT_OF_THE_POD = (Reason.OPERATOR_FORBIDDEN, Reason.OPERATOR_UNAUTHORIZED, Reason.FORBIDDEN)
"""Of a user's request these say that the user may not create pods. The operator does."""


class PodRefusedError(InvalidInputError):
    """The API server does not take the pods that an experiment's template describes."""


@dataclass(frozen=True)
class Answer:
    """What the API server says of a pod.

    Attributes:
        refusal: why it would be refused; None where it would not be, or where that is not known.
        unknown: why it is not known; "" where it is.
    """

    refusal: PendingReason | None = None
    unknown: str = ""


def ask(client: KubeClient, namespace: str, manifest: Mapping[str, Any], image: str = "") -> Answer:
    """Ask for a pod of an experiment.

    Args:
        client: connection of the user.
        namespace: of the experiment.
        manifest: a valid one. Where `spec.trialResource` makes the pods, nothing is known.
        image: of trials whose manifest names none.
    """
    experiment = check_document(Document(dict(manifest))).experiment
    if experiment is None or experiment.spec.trial_resource is not None:
        return Answer(unknown="spec.trialResource makes the pods")
    owner = ObjectRef(namespace=namespace, name=experiment.name, uid="")
    options = PodOptions(address=_ADDRESS, default_image=image or _IMAGE, runtime_image=_IMAGE)
    try:
        pod = build_pod(experiment, owner, owner, secrets.token_hex(4), 1, options)
    except TemplateError as error:
        return Answer(PendingReason(reason=Reason.INVALID_TEMPLATE, message=str(error), remedy="", severity="stuck"))
    del pod["metadata"]["ownerReferences"]
    query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": names.MANAGER}
    try:
        client.request("POST", f"/api/v1/namespaces/{quote(namespace)}/pods", pod, query=query)
    except ApiError as error:
        found = rejection_reason(error.status, error.reason, error.detail)
        if found.reason in _NOT_OF_THE_POD or error.temporary:
            return Answer(unknown=error.detail)
        return Answer(found)
    return Answer()


def check(api: Experiments, manifest: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Refuse an experiment whose pods cannot be right; warn where the namespace would not take them now.

    Args:
        api: connection of the user.
        manifest: a valid one.
        warn: is given a sentence.

    Raises:
        PodRefusedError: the template has a field that pods do not have, or a value that they cannot have.
    """
    if not manifest["spec"].get("template"):
        return
    found = ask(api.client, api.namespace, manifest).refusal
    if found is None:
        return
    if found.reason == Reason.INVALID_TEMPLATE:
        raise PodRefusedError(f"{manifest['metadata']['name']}: {found.text}")
    if found.severity == "stuck":
        warn(f"a pod of {manifest['metadata']['name']} would be refused now: {found.text}")
