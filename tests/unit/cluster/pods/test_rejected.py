"""Why the API server refused a pod, from the words of its admission plug-ins."""

from __future__ import annotations

import pytest

from trialpod_operator.cluster.pods.rejected import rejection_reason

_POD = 'pods "digits-d75de-00001-1" is forbidden: '
_QUOTA = (
    f"{_POD}exceeded quota: gpus, requested: requests.cpu=1,requests.nvidia.com/gpu=1, "
    "used: requests.cpu=3,requests.nvidia.com/gpu=4, limited: requests.cpu=9,requests.nvidia.com/gpu=4"
)
_SECURITY = (
    f'{_POD}violates PodSecurity "restricted:latest": runAsNonRoot != true '
    '(pod or container "trial" must set securityContext.runAsNonRoot=true)'
)
_RBAC = (
    'pods is forbidden: User "system:serviceaccount:trialpod:operator" cannot create resource "pods" '
    'in API group "" in the namespace "team"'
)


@pytest.mark.parametrize(
    ("status", "message", "reason", "severity", "words"),
    [
        (
            403,
            _QUOTA,
            "QuotaExceeded",
            "waiting",
            "the quota gpus is used up: asked for requests.cpu=1, requests.nvidia.com/gpu=1, used requests.cpu=3",
        ),
        (
            403,
            f"{_POD}failed quota: q: must specify limits.memory for: trial",
            "QuotaNeedsResources",
            "stuck",
            "limits",
        ),
        (
            403,
            _SECURITY,
            "PodSecurity",
            "stuck",
            "level restricted:latest does not allow the pod: runAsNonRoot != true",
        ),
        (
            403,
            _RBAC,
            "OperatorForbidden",
            "stuck",
            "may not create pods",
        ),
        (
            403,
            f'{_POD}error looking up service account team/x: serviceaccount "x" not found',
            "ServiceAccountNotFound",
            "stuck",
            "serviceAccountName",
        ),
        (403, f"{_POD}no PriorityClass with name low was found", "PriorityClassNotFound", "stuck", "class low does"),
        (
            403,
            f"{_POD}maximum memory usage per Container is 1Gi, but limit is 2Gi",
            "LimitRange",
            "stuck",
            "maximum memory usage per Container is 1Gi",
        ),
        (
            403,
            f"{_POD}unable to create new content in namespace team because it is being terminated",
            "NamespaceTerminating",
            "stuck",
            "being deleted",
        ),
        (404, 'namespaces "team" not found', "NamespaceTerminating", "stuck", "namespace"),
        (
            403,
            f"{_POD}ValidatingAdmissionPolicy 'no-root' with binding 'b' denied: x",
            "PolicyDenied",
            "stuck",
            "no-root",
        ),
        (403, "something else", "Forbidden", "stuck", "something else"),
        (
            422,
            'Pod "x" is invalid: spec.containers[0].volumeMounts[2].name: Not found: "data"',
            "InvalidTemplate",
            "stuck",
            'spec.template.spec.containers[0].volumeMounts[2].name is invalid: Not found: "data"',
        ),
        (
            400,
            "Pod in version v1 cannot be handled as a Pod: json: x",
            "InvalidTemplate",
            "stuck",
            "cannot be handled",
        ),
        (
            400,
            'strict decoding error: unknown field "spec.nodeSelectr", unknown field "spec.containers[0].imag"',
            "InvalidTemplate",
            "stuck",
            "spec.nodeSelectr, as in spec.template (did you mean nodeSelector?); a pod has no field spec.containers",
        ),
        (401, "Unauthorized", "OperatorUnauthorized", "waiting", "credentials"),
        (409, 'pods "x" already exists', "NameTaken", "waiting", "already exists"),
        (413, "too large", "TooLarge", "stuck", "smaller"),
        (429, "too many requests", "ApiServerBusy", "waiting", "retried automatically"),
        (503, "etcd leader changed", "ApiServerUnavailable", "waiting", "etcd leader changed"),
        (0, "connection refused", "ApiServerUnavailable", "waiting", "did not answer"),
        (418, "teapot", "Refused", "stuck", "418"),
    ],
)
def test_a_refusal_names_what_is_wrong_and_what_to_do(
    status: int, message: str, reason: str, severity: str, words: str
) -> None:
    found = rejection_reason(status, "Reason", message)
    assert (found.reason, found.severity) == (reason, severity)
    assert words in found.text
    assert found.remedy


@pytest.mark.parametrize("status", [413, 422])
def test_a_refused_trial_is_not_blamed_on_the_template(status: int) -> None:
    why = rejection_reason(
        status, "Invalid", 'TuneTrial "a" is invalid: spec.index: must be 0 or more', kind="TuneTrial"
    )
    assert why.reason == "Refused"
    assert why.message.startswith("the API server refuses the TuneTrial: ")
    assert "template" not in why.text
