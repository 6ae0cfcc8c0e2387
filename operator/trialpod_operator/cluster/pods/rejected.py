"""Why the API server refused to create a trial's pod, or what else the operator asked for, with the next step.

The strings are those of the admission plug-ins in the Kubernetes source: ResourceQuota, LimitRanger, PodSecurity,
Priority, ServiceAccount, NamespaceLifecycle.
"""

from __future__ import annotations

import re

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.pod_fields import hint_for
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.names import TRIAL_KIND
from trialpod_operator.cluster.pods.reading import PendingReason, Severity, foreign

_QUOTA = re.compile(r"exceeded quota: ([^,\s]+), requested: (\S+?), used: (\S+?), limited: (\S+)")
_QUOTA_NEEDS = re.compile(r"failed quota: ([^:\s]+): must specify (.+)")
_SECURITY = re.compile(r"violates PodSecurity \"([^\"]+)\": (.+)", re.DOTALL)
_RBAC = re.compile(r"User \"([^\"]+)\" cannot (\w+) resource \"([^\"]+)\"")
_SERVICE_ACCOUNT = re.compile(r"serviceaccount \"([^\"]+)\" not found")
_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")
_LIMIT_RANGE = re.compile(r"(?:maximum|minimum) \S+ usage per (?:Container|Pod) is .*|.*limit to request ratio .*")
_POLICY = re.compile(r"(?:admission webhook|ValidatingAdmissionPolicy) ['\"]([^'\"]+)['\"]")
_FIELD = re.compile(r"is invalid: \[?((?:spec|metadata)[^:\s]*): (.+)", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"unknown field \"([^\"]+)\"")
_TERMINATING = "because it is being terminated"
_BY_STATUS = {401: Reason.OPERATOR_UNAUTHORIZED, 413: Reason.TOO_LARGE, 429: Reason.API_SERVER_BUSY}
_TEMPORARY = {
    Reason.API_SERVER_BUSY,
    Reason.API_SERVER_UNAVAILABLE,
    Reason.NAME_TAKEN,
    Reason.OPERATOR_UNAUTHORIZED,
    Reason.QUOTA_EXCEEDED,
}
"""Refusals that may end without help; all others need it."""

_REQUEST_REMEDIES = {
    Reason.OPERATOR_FORBIDDEN: Reason.OPERATOR_FORBIDDEN.remedy,
    Reason.QUOTA_EXCEEDED: "raise the quota",
    Reason.QUOTA_NEEDS_RESOURCES: "change the quota",
}
_THE_POD = re.compile(r"\bthe pod\b")


def rejection_reason(
    status: int, reason: str, message: str, now: float | None = None, *, kind: str = ""
) -> PendingReason:
    """Return why an object could not be created.

    Args:
        status: of the HTTP answer; 0 when there was none.
        reason: `reason` of the Status object, such as "Forbidden".
        message: `message` of the Status object.
        now: seconds since the epoch, which becomes `since`.
        kind: of the object, where that is not a pod but a TuneTrial, or an object of `spec.trialResource`.
    """
    found, text = _explain(status, reason, message, foreign(message, 600))
    if kind == TRIAL_KIND:
        found, text = _of_trial(message, found, text)
    elif kind:
        found, text = _of_kind(kind, status, message, found, text)
    severity: Severity = "waiting" if found in _TEMPORARY else "stuck"
    return PendingReason(reason=found, message=text, remedy=found.remedy, severity=severity, since=now)


def request_refusal(error: ApiError) -> PendingReason:
    """Return why the API server does not allow a request of the operator's that is not for a pod."""
    found, text = _explain(error.status, error.reason, error.detail, foreign(error.detail, 600))
    remedy = _REQUEST_REMEDIES.get(found, "ask the cluster's administrator")
    text = f"{_THE_POD.sub('the request', text)} ({error.method} {error.path})"
    severity: Severity = "waiting" if found in _TEMPORARY else "stuck"
    return PendingReason(reason=found, message=text, remedy=remedy, severity=severity)


def _of_trial(message: str, found: Reason, text: str) -> tuple[Reason, str]:
    """Return the same for a TuneTrial, which no template describes."""
    if found in (Reason.INVALID_TEMPLATE, Reason.TOO_LARGE):
        return Reason.REFUSED, f"the API server refuses the {TRIAL_KIND}: {foreign(message, 600)}"
    return found, _THE_POD.sub(f"the {TRIAL_KIND}", text)


def _of_kind(kind: str, status: int, message: str, found: Reason, text: str) -> tuple[Reason, str]:
    """Return the same for an object of another kind."""
    if status == 404 and found is not Reason.NAMESPACE_TERMINATING:
        return Reason.TRIAL_KIND_MISSING, f"the API server has no kind {kind} of this apiVersion"
    if found is Reason.INVALID_TEMPLATE:
        words = foreign(message, 600)
        return (
            Reason.INVALID_TRIAL_RESOURCE,
            f"the {kind} that spec.trialResource.template describes is invalid: {words}",
        )
    if found is Reason.OPERATOR_FORBIDDEN:
        return found, f"{text}; it needs create, get, list, patch and delete for the kinds of the chart's trialKinds"
    return found, _THE_POD.sub(f"the {kind}", text)


def _explain(status: int, reason: str, message: str, words: str) -> tuple[Reason, str]:
    if _TERMINATING in message or (status == 404 and "namespaces" in message):
        return Reason.NAMESPACE_TERMINATING, Reason.NAMESPACE_TERMINATING.meaning
    if status == 403:
        return _forbidden(message, words)
    if status in (400, 422):
        if fields := _UNKNOWN_FIELD.findall(message):
            return Reason.INVALID_TEMPLATE, "; ".join(_unknown(foreign(field)) for field in fields)
        if match := _FIELD.search(message):
            return Reason.INVALID_TEMPLATE, f"spec.template.{match[1]} is invalid: {foreign(match[2]).rstrip('] ')}"
        return Reason.INVALID_TEMPLATE, f"the pod that spec.template describes is invalid: {words}"
    if status == 409:
        return Reason.NAME_TAKEN, f"{Reason.NAME_TAKEN.meaning}: {words}"
    if status >= 500 or status == 0:
        answer = f"answered {status}" if status else "did not answer"
        return Reason.API_SERVER_UNAVAILABLE, f"the API server {answer}: {words}"
    if found := _BY_STATUS.get(status):
        return found, found.meaning
    return Reason.REFUSED, f"the API server refused the pod ({status} {reason}): {words}"


def _unknown(field: str) -> str:
    hint = hint_for(field)
    return f"a pod has no field {field}, as in spec.template{f' ({hint})' if hint else ''}"


def _forbidden(message: str, words: str) -> tuple[Reason, str]:
    if match := _QUOTA.search(message):
        quota, asked, used, limit = match.groups()
        text = f"the quota {quota} is used up: asked for {_commas(asked)}, used {_commas(used)} of {_commas(limit)}"
        return Reason.QUOTA_EXCEEDED, text
    if match := _QUOTA_NEEDS.search(message):
        return Reason.QUOTA_NEEDS_RESOURCES, f"the quota {match[1]} wants every pod to state {foreign(match[2])}"
    if match := _SECURITY.search(message):
        text = f"the namespace's Pod Security level {match[1]} does not allow the pod: {foreign(match[2])}"
        return Reason.POD_SECURITY, text
    if match := _SERVICE_ACCOUNT.search(message):
        return Reason.SERVICE_ACCOUNT_NOT_FOUND, f"the service account {match[1]} does not exist"
    if match := _PRIORITY.search(message):
        return Reason.PRIORITY_CLASS_NOT_FOUND, f"the priority class {match[1]} does not exist"
    if match := _RBAC.search(message):
        text = f"the operator ({match[1]}) may not {match[2]} {match[3]} in this namespace"
        return Reason.OPERATOR_FORBIDDEN, text
    if match := _POLICY.search(message):
        return Reason.POLICY_DENIED, f"the cluster's policy {match[1]} does not allow the pod: {words}"
    if match := _LIMIT_RANGE.search(message.partition("is forbidden: ")[2] or message):
        return Reason.LIMIT_RANGE, f"the namespace's limit range does not allow the pod: {foreign(match[0])}"
    return Reason.FORBIDDEN, f"the API server does not allow the pod: {words}"


def _commas(amounts: str) -> str:
    return amounts.replace(",", ", ")
