"""What `helm test` runs in a pod: whether the operator answers, and whether it has its permissions.

Needs the standard library alone. PERMISSIONS is a list of {namespace, rules} as in a Role; "" is every namespace.
"""

import http.client
import json
import os
import ssl
import sys
import time

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
PATIENCE_S = 30
"""Where networks are closed, the way out of a new pod is opened some seconds after its start."""


def reports(host: str) -> str:
    """Return what is wrong with the service that trials report to, or ""."""
    # Its certificate is the operator's own; trials check it, and here any answer will do.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = http.client.HTTPSConnection(host, 8443, timeout=5, context=context)
            connection.request("POST", "/v1/none/none/assignment", body=b"")
            status = connection.getresponse().status
            trouble = "" if status < 500 else f"{host}:8443 answers {status}; look at the operator's log"
        except OSError as error:
            trouble = f"{host}:8443 does not answer ({error}); is the operator ready? kubectl get pods"
        if not trouble or time.monotonic() > deadline:
            return trouble
        time.sleep(1)


def missing(permissions: list[dict]) -> list[str]:
    """Return the permissions that the API server denies."""
    with open(f"{FOLDER}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json"}
    address = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    context = ssl.create_default_context(cafile=f"{FOLDER}/ca.crt")
    connection = http.client.HTTPSConnection(*address, timeout=10, context=context)
    found = []
    for each in permissions:
        for rule in each["rules"]:
            for resource, verb, name in (
                (resource, verb, name)
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            ):
                kind, _, part = resource.partition("/")
                asked = {
                    "namespace": each["namespace"], "group": rule["apiGroups"][0], "resource": kind,
                    "subresource": part, "verb": verb, "name": name,
                }  # fmt: skip
                body = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": asked},
                }
                path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
                connection.request("POST", path, json.dumps(body), headers)
                answer = json.loads(connection.getresponse().read())
                if not answer.get("status", {}).get("allowed"):
                    where = each["namespace"] or "the cluster"
                    found.append(f"{verb} {resource} {name}".strip() + f" in {where}")
    return found


def main() -> int:
    """Print what was found; return the exit status."""
    permissions = json.loads(os.environ["PERMISSIONS"])
    trouble = [text for text in [reports(os.environ["SERVICE"])] if text]
    print("the service of the reports answers" if not trouble else trouble[0])
    denied = missing(permissions)
    for permission in denied:
        print(f"the operator's service account may not {permission}; see rbac.create, watchNamespaces and trialKinds")
    count = sum(len(rule["verbs"]) * len(rule["resources"]) for each in permissions for rule in each["rules"])
    if not denied:
        print(f"the operator's service account has its {count} permissions")
    return 1 if trouble or denied else 0


if __name__ == "__main__":
    sys.exit(main())
