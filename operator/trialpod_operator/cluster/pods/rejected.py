"""Why the API server refused to create a trial's pod, in words, with the next step.

The strings are those of the admission plug-ins in the Kubernetes source: ResourceQuota, LimitRanger, PodSecurity,
Priority, ServiceAccount, NamespaceLifecycle.
"""

from __future__ import annotations

import re

from trialpod_operator.api.reasons import Reason
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
_TERMINATING = "because it is being terminated"


def rejection_reason(status: int, reason: str, message: str, now: float | None = None) -> PendingReason:
    """Return why an object could not be created.

    Args:
        status: of the HTTP answer; 0 when there was none.
        reason: `reason` of the Status object, such as "Forbidden".
        message: `message` of the Status object.
        now: seconds since the epoch, which becomes `since`.
    """
    words = foreign(message, 600)
    name, text, remedy, severity = _explain(status, reason, message, words)
    return PendingReason(reason=name, message=text, remedy=remedy, severity=severity, since=now)


def _explain(status: int, reason: str, message: str, words: str) -> tuple[Reason, str, str, Severity]:
    if _TERMINATING in message or (status == 404 and "namespaces" in message):
        return Reason.NAMESPACE_TERMINATING, "the namespace is being deleted", "use another namespace", "stuck"
    if status == 403:
        return _forbidden(message, words)
    if status in (400, 422):
        return _invalid(message, words)
    if status == 401:
        return (
            Reason.OPERATOR_UNAUTHORIZED,
            "the API server does not accept the operator's credentials",
            "restart the operator, and check its service account",
            "waiting",
        )
    if status == 409:
        return (
            Reason.NAME_TAKEN,
            f"an object of that name is there already: {words}",
            "it is looked at again; delete it if it is not one of trialpod's",
            "waiting",
        )
    if status == 413:
        return Reason.TOO_LARGE, "the pod is larger than the API server takes", "make spec.template smaller", "stuck"
    if status == 429:
        return Reason.API_SERVER_BUSY, "the API server asks for fewer requests", "it is tried again", "waiting"
    if status >= 500 or status == 0:
        what = f"the API server answered {status}: {words}" if status else f"the API server did not answer: {words}"
        return Reason.API_SERVER_UNAVAILABLE, what, "it is tried again", "waiting"
    return (
        Reason.REFUSED,
        f"the API server refused the pod ({status} {reason}): {words}",
        "correct spec.template",
        "stuck",
    )


def _forbidden(message: str, words: str) -> tuple[Reason, str, str, Severity]:
    if match := _QUOTA.search(message):
        quota, asked, used, limit = match.groups()
        return (
            Reason.QUOTA_EXCEEDED,
            f"the quota {quota} is used up: asked for {_commas(asked)}, used {_commas(used)} of {_commas(limit)}",
            "it starts when other pods end; lower spec.maxConcurrentTrials or spec.resources, or raise the quota",
            "waiting",
        )
    if match := _QUOTA_NEEDS.search(message):
        what = foreign(match[2])
        return (
            Reason.QUOTA_NEEDS_RESOURCES,
            f"the quota {match[1]} wants every pod to say {what}",
            "set them in spec.resources (and for other containers in spec.template)",
            "stuck",
        )
    if match := _SECURITY.search(message):
        return (
            Reason.POD_SECURITY,
            f"the namespace's Pod Security level {match[1]} does not allow the pod: {foreign(match[2])}",
            "change these fields in spec.template.spec, or run it in another namespace",
            "stuck",
        )
    if match := _SERVICE_ACCOUNT.search(message):
        return (
            Reason.SERVICE_ACCOUNT_NOT_FOUND,
            f"the service account {match[1]} does not exist",
            "create it, or correct spec.template.spec.serviceAccountName",
            "stuck",
        )
    if match := _PRIORITY.search(message):
        return (
            Reason.PRIORITY_CLASS_NOT_FOUND,
            f"the priority class {match[1]} does not exist",
            "create it, or correct spec.template.spec.priorityClassName",
            "stuck",
        )
    if match := _RBAC.search(message):
        return (
            Reason.OPERATOR_FORBIDDEN,
            f"the operator ({match[1]}) may not {match[2]} {match[3]} in this namespace",
            "give it the rights: the chart's `namespaces` value lists where it may work",
            "stuck",
        )
    if match := _POLICY.search(message):
        return (
            Reason.POLICY_DENIED,
            f"the cluster's policy {match[1]} does not allow the pod: {words}",
            "change spec.template as it says, or ask who runs the cluster",
            "stuck",
        )
    tail = message.partition("is forbidden: ")[2] or message
    if match := _LIMIT_RANGE.search(tail):
        return (
            Reason.LIMIT_RANGE,
            f"the namespace's limit range does not allow the pod: {foreign(match[0])}",
            "change spec.resources to fit it",
            "stuck",
        )
    return Reason.FORBIDDEN, f"the API server does not allow the pod: {words}", "ask who runs the cluster", "stuck"


def _invalid(message: str, words: str) -> tuple[Reason, str, str, Severity]:
    if match := _FIELD.search(message):
        field, why = match[1], foreign(match[2]).rstrip("] ")
        return (
            Reason.INVALID_TEMPLATE,
            f"spec.template.{field} is wrong: {why}",
            "correct it in the experiment",
            "stuck",
        )
    return Reason.INVALID_TEMPLATE, f"the pod that spec.template describes is wrong: {words}", "correct it", "stuck"


def _commas(amounts: str) -> str:
    return amounts.replace(",", ", ")
