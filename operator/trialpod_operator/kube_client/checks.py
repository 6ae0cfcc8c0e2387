"""What `trialpod check` finds out about a cluster: each finding is fine, bad with a remedy, or not known.

Every check stands alone: what the user may not look at is "not known", with the permission that would tell, and the
others continue.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.api.api_errors import ApiError, ForbiddenError, NotFoundError
from trialpod_operator.api.quantity import parse_quantity
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.pending import pending_reason
from trialpod_operator.cluster.pods.rejected import rejection_reason
from trialpod_operator.cluster.shards.assignment import SHARDS, shares
from trialpod_operator.cluster.storage_access import NAMESPACE
from trialpod_operator.kube_client import probe_pod
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.findings import (
    SKEW_S,
    Finding,
    clock_finding,
    facts_of,
    inside_findings,
    is_ready,
    limits_config_maps,
    no_answer_finding,
    queue_findings,
    quota_finding,
    served,
    serves,
)
from trialpod_operator.kube_client.pod_dry_run import ask
from trialpod_operator.kube_client.probe_pod import Probe
from trialpod_operator.kube_client.version_skew import CHART, missing_fields, skew

Json = dict[str, Any]

MIN_KUBERNETES = (1, 30)
POLL_INTERVAL_S = 0.5
_OPERATOR = "app.kubernetes.io/part-of=trialpod,app.kubernetes.io/component=operator"
_OPERATOR_NAMESPACE = "trialpod-system"
_PERMISSIONS = (
    ("create", names.GROUP, names.EXPERIMENTS, ""),
    ("get", names.GROUP, names.EXPERIMENTS, ""),
    ("list", names.GROUP, names.EXPERIMENTS, ""),
    ("patch", names.GROUP, names.EXPERIMENTS, ""),
    ("delete", names.GROUP, names.EXPERIMENTS, ""),
    ("list", names.GROUP, names.TRIALS, ""),
    ("patch", names.GROUP, names.TRIALS, ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
)


class Checks:
    """The checks of one namespace.

    Args:
        api: the namespace.
        clock: seconds since the epoch.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        api: Experiments,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._client = api.client
        self._clock = clock
        self._sleep = sleep
        self.facts: dict[str, str] = {}
        """What the operator says of itself; after `operator`."""
        self.user = "USER"
        self._renewed = ""  # when the operator did so with its Lease

    # -- the API server --

    def server(self) -> Iterator[Finding]:
        """Check that there is a cluster, of which version, and which user this is.

        Raises:
            TrialpodError: it cannot be reached; nothing else is worth a try.
        """
        try:
            version = self._client.request("GET", "/version")
        except ApiError as error:
            raise TrialpodError(f"the cluster at {self._client.access.server} refuses: {error.detail}") from error
        version_text = str(version.get("gitVersion") or "?")
        number = re.match(r"v(\d+)\.(\d+)", version_text)
        self.user = self._whoami()
        text = f"Kubernetes {version_text} at {self._client.access.server}, as {self.user}"
        if number and (int(number[1]), int(number[2])) < MIN_KUBERNETES:
            least = ".".join(map(str, MIN_KUBERNETES))
            yield Finding("API server", "bad", text, f"trialpod needs Kubernetes {least} or newer")
        else:
            yield Finding("API server", "ok", text)
        yield from self._server_clock()
        yield from self._namespace()

    def _server_clock(self) -> Iterator[Finding]:
        at = email.utils.parsedate_to_datetime(self._client.date) if self._client.date else None
        if at is not None:
            yield clock_finding("API server's clock", at.timestamp() + 0.5, self._clock())

    def _whoami(self) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            found = self._client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        except ApiError:
            return "USER"  # It is only for the messages.
        return str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "USER")

    def _namespace(self) -> Iterator[Finding]:
        name = self._api.namespace
        try:
            found = self._client.request("GET", f"/api/v1/namespaces/{quote(name)}")
        except NotFoundError:
            yield Finding("namespace", "bad", f"{name} is not there", f"kubectl create namespace {name}")
            return
        except ApiError:
            return  # Forbidden: users of one namespace may not look at namespaces; the permissions will tell.
        phase = (found.get("status") or {}).get("phase")
        if phase == "Terminating":
            yield Finding("namespace", "bad", f"{name} is being deleted", "use another one: -n NAMESPACE")

    def definitions(self) -> Iterator[Finding]:
        """Are the kinds there, and do they have the fields that this version knows."""
        command = f"helm install trialpod {CHART} --namespace {_OPERATOR_NAMESPACE} --create-namespace"
        install = f"a cluster administrator can install it: {command}"
        try:
            self._client.request("GET", f"/apis/{names.API_VERSION}")
        except NotFoundError:
            text = f"{names.API_VERSION} is not known to the cluster"
            yield Finding("definitions", "bad", text, install)
            return
        try:
            document = self._client.request("GET", f"/openapi/v3/apis/{names.API_VERSION}")
        except ApiError as error:
            text = f"{names.API_VERSION} is there; its fields cannot be seen: {error.detail}"
            yield Finding("definitions", "unknown", text)
            return
        missing = missing_fields((document.get("components") or {}).get("schemas") or {})
        if missing:
            listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            yield Finding(
                "definitions",
                "bad",
                f"they are of an older version: {listed} {'are' if len(missing) > 1 else 'is'} not in them",
                "kubectl apply --server-side -f crds/ (of this version), or helm upgrade the chart",
            )
        else:
            yield Finding("definitions", "ok", f"{names.API_VERSION}, with all fields of this version")

    # -- permissions --

    def permissions(self, *, probe: bool) -> Iterator[Finding]:
        """May the user do what the commands do; with `probe`, also what this check itself does."""
        wanted = [*_PERMISSIONS, *([("create", "", "pods", ""), ("delete", "", "pods", "")] if probe else [])]
        missing = []
        for verb, group, resource, part in wanted:
            allowed = self._may(verb, group, resource, part)
            if allowed is None:
                yield Finding("permissions", "unknown", "the API server does not say what this user may do")
                return
            if not allowed:
                missing.append(f"{verb} {resource}{f'/{part}' if part else ''}")
        if missing:
            space = self._api.namespace
            yield Finding(
                "permissions",
                "bad",
                f"{self.user} may not {', '.join(missing)} in {space}",
                f"a cluster administrator grants them: kubectl -n {space} create rolebinding trialpod-users "
                f"--clusterrole=edit --user={self.user}",
            )
        else:
            yield Finding("permissions", "ok", f"{self.user} may run, watch, change and delete experiments")

    def _may(self, verb: str, group: str, resource: str, part: str) -> bool | None:
        asked: Json = {"namespace": self._api.namespace, "verb": verb, "group": group, "resource": resource}
        if part:
            asked["subresource"] = part
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            found = self._client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        except ApiError:
            return None
        return bool((found.get("status") or {}).get("allowed"))

    # -- the operator --

    def operator(self) -> Iterator[Finding]:
        """Is an active operator that serves the namespace, and of which version."""
        self.facts = self._api.operator_facts()
        try:
            pods = self._operator_pods()
        except ApiError as error:
            pods = []
            text = f"its pod cannot be seen ({error.reason or error.status})"
            if version := self.facts.get(names.VERSION_ANNOTATION):
                yield Finding("operator", "unknown", f"{text}; version {version} has run experiments here")
            else:
                hint = "submit an experiment: `trialpod why` says whether it answers"
                yield Finding("operator", "unknown", text, hint)
        else:
            yield self._operator_finding(pods)
        if found := skew(self.facts):
            yield Finding("versions", "bad", found.problem, found.remedy)

    def _operator_pods(self) -> list[Json]:
        query = {"labelSelector": _OPERATOR}
        try:
            return list(self._client.request("GET", "/api/v1/pods", query=query).get("items") or [])
        except ForbiddenError:
            pass  # of its own namespace perhaps
        path = f"/api/v1/namespaces/{_OPERATOR_NAMESPACE}/pods"
        return list(self._client.request("GET", path, query=query).get("items") or [])

    def _operator_finding(self, pods: list[Json]) -> Finding:
        if not pods:
            return Finding(
                "operator",
                "bad",
                "there is none in the cluster (no pod with " + _OPERATOR + ")",
                f"helm install trialpod {CHART} --namespace {_OPERATOR_NAMESPACE} --create-namespace",
            )
        serving = [pod for pod in pods if serves(pod, self._api.namespace)]
        if not serving:
            return Finding(
                "operator",
                "bad",
                f"the one that runs does not serve the namespace {self._api.namespace}",
                "add it to the chart's watchNamespaces, or use one of: "
                + ", ".join(sorted({space for pod in pods for space in served(pod)})),
            )
        ready = [pod for pod in serving if is_ready(pod)]
        pod = (ready or serving)[0]
        meta = pod["metadata"]
        for key, value in facts_of(pod).items():
            self.facts.setdefault(key, value)
        self.facts |= {k: v for k, v in self._lease_facts(meta["namespace"]).items() if v}
        # Pod and Lease are of all namespaces.
        self.facts = {key: fact.replace(NAMESPACE, self._api.namespace) for key, fact in self.facts.items()}
        where = f"{meta['namespace']}/{meta['name']}"
        if not ready:
            why = pending_reason(pod, self._clock())
            text = why.text if why else "it is not ready"
            return Finding(
                "operator", "bad", f"{where}: {text}", f"kubectl -n {meta['namespace']} logs {meta['name']} --tail=20"
            )
        installed = sorted({each["metadata"]["namespace"] for each in ready})
        if len(installed) > 1:
            return Finding(
                "operator",
                "bad",
                f"several serve the namespace {self._api.namespace}, and take its experiments from each other: "
                f"those in {', '.join(installed)}",
                "remove all but one, or give each namespaces of its own: the chart's watchNamespaces",
            )
        version = self.facts.get(names.VERSION_ANNOTATION, "?")
        shared = shares(self.facts.get(names.SHARDS_ANNOTATION, ""))
        if len(shared) > 1:
            each = ", ".join(f"{name} serves {count} of {SHARDS} shards" for name, count in shared.items())
            where = f"{len(ready)} operators in {meta['namespace']}: {each}"
        return Finding("operator", "ok", f"trialpod {version} is ready: {where}")

    def _lease_facts(self, namespace: str) -> dict[str, str]:
        try:
            path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/trialpod-operator"
            found = self._client.request("GET", path)
        except ApiError:
            return {}  # Few may read it, and the pod says nearly as much.
        notes = (found.get("metadata") or {}).get("annotations") or {}
        self._renewed = str((found.get("spec") or {}).get("renewTime") or "")
        return {key: str(value) for key, value in notes.items() if key.startswith(f"{names.GROUP}/")}

    def operator_clock(self) -> Iterator[Finding]:
        """How late the operator's latest sign of life is; its clock, and whether it is alive."""
        if not self._renewed:
            return
        ago = self._clock() - dt.datetime.fromisoformat(self._renewed).timestamp()
        if -SKEW_S <= ago <= 15.0 + SKEW_S:
            yield Finding("operator's Lease", "ok", f"renewed {max(ago, 0.0):.0f} s ago")
        elif ago > 0:
            text = f"renewed {ago:.0f} s ago: it is not active, or its node's clock is behind"
            yield Finding("operator's Lease", "bad", text, "look at its log, and at the time service of its node")
        else:
            text = f"renewed {-ago:.0f} s in the future of this machine's clock"
            yield Finding("operator's Lease", "bad", text, "set the clock of this machine, or of the operator's node")

    # -- pods --

    def pods(self, manifest: Mapping[str, Any]) -> Iterator[Finding]:
        """Would the API server take the pods of an experiment, as a dry run says."""
        answer = ask(self._client, self._api.namespace, manifest, self.facts.get(names.IMAGE_ANNOTATION, ""))
        if answer.unknown:
            yield Finding("pods", "unknown", f"the API server cannot be asked: {answer.unknown}")
        elif answer.refusal is None:
            yield Finding("pods", "ok", "the API server would take them")
        else:
            waits = answer.refusal.severity == "waiting"
            yield Finding("pods", "unknown" if waits else "bad", answer.refusal.message, answer.refusal.remedy)

    # -- room --

    def quota(self, devices: Collection[str]) -> Iterator[Finding]:
        """What the namespace's quotas leave.

        Args:
            devices: the names of the devices that the experiment's pods request.
        """
        path = f"/api/v1/namespaces/{quote(self._api.namespace)}/resourcequotas"
        try:
            found = self._client.request("GET", path).get("items") or []
        except ApiError as error:
            yield Finding("quota", "unknown", f"quotas cannot be seen: {error.reason or error.detail}")
            return
        if not found:
            yield Finding("quota", "ok", "the namespace has none")
        needs_config_map = any(map(limits_config_maps, found)) and not self._has_config_map()
        for item in found:
            yield quota_finding(item, devices, needs_config_map=needs_config_map)

    def _has_config_map(self) -> bool:
        """Return whether the operator has created its ConfigMap in the namespace."""
        try:
            path = f"/api/v1/namespaces/{quote(self._api.namespace)}/configmaps/{names.CA_CONFIG_MAP}"
            self._client.request("GET", path)
        except ApiError:
            return False
        return True

    def devices(self, resource: str, *, wanted: bool) -> Iterator[Finding]:
        """How many GPUs the nodes offer."""
        try:
            nodes = self._client.request("GET", "/api/v1/nodes").get("items") or []
        except ApiError as error:
            yield Finding("GPUs", "unknown", f"nodes cannot be seen: {error.reason or error.detail}")
            return
        per_node = [_count(((node.get("status") or {}).get("allocatable") or {}).get(resource)) for node in nodes]
        offering = [count for count in per_node if count]
        if offering:
            yield Finding("GPUs", "ok", f"{sum(offering)} {resource} on {len(offering)} of {len(nodes)} nodes")
        elif wanted:
            remedy = "install the device plug-in of your GPUs, or the GPU operator"
            yield Finding("GPUs", "bad", f"no node offers {resource}", remedy)
        else:
            yield Finding("GPUs", "ok", f"no node offers {resource}; experiments without GPUs do not need any")

    def queues(self, queue: str) -> Iterator[Finding]:
        """The LocalQueues of Kueue that the namespace has; nothing where there is no Kueue.

        Args:
            queue: that the experiment's pods are to wait in; "" = none.
        """
        found = None
        for version in queues.VERSIONS:
            path = f"/apis/{queues.GROUP}/{version}/namespaces/{quote(self._api.namespace)}/localqueues"
            try:
                found = list(self._client.request("GET", path).get("items") or [])
                break
            except NotFoundError:
                continue
            except ApiError as error:
                yield Finding("queues", "unknown", f"LocalQueues cannot be seen: {error.reason or error.detail}")
                return
        yield from queue_findings(found, queue, self._api.namespace)

    def trial_kind(self, resource: Mapping[str, Any]) -> Iterator[Finding]:
        """May trials be objects of the kind that `spec.trialResource` names: is it there, may the operator use it.

        Args:
            resource: that field.
        """
        template = resource.get("template") or {}
        version, kind = str(template.get("apiVersion") or ""), str(template.get("kind") or "")
        root = "/apis" if "/" in version else "/api"
        try:
            listed = self._client.request("GET", f"{root}/{version}").get("resources") or []
        except NotFoundError:
            listed = []
        except ApiError as error:
            yield Finding("trial kind", "unknown", f"{version} cannot be seen: {error.reason or error.detail}")
            return
        found = [each for each in listed if each.get("kind") == kind and "/" not in str(each.get("name"))]
        if not found:
            remedy = "install its definition and controller, or correct apiVersion and kind (`kubectl api-resources`)"
            yield Finding("trial kind", "bad", f"the cluster has no kind {kind} of {version}", remedy)
            return
        plural = found[0].get("name")
        allowed = self.facts.get(names.KINDS_ANNOTATION, "")
        if f"{version}/{kind}={plural}" in allowed.split(","):
            yield Finding("trial kind", "ok", f"the operator may make {plural} of {version}")
        elif not self.facts:
            yield Finding(
                "trial kind", "unknown", f"whether the operator may make {plural} of {version} is not known"
            )
        else:
            remedy = (
                f"who installed it adds {{apiVersion: {version}, kind: {kind}, resource: {plural}}} to the chart's "
                "trialKinds, which also gives it the permissions get, list, create, patch and delete"
            )
            yield Finding("trial kind", "bad", f"the operator may not make {plural} of {version}", remedy)

    # -- from inside --

    def inside(self, probe: Probe, name: str, timeout_s: float) -> Iterator[Finding]:
        """Run the probe's pod and tell what it found; the pod is gone afterwards."""
        space = f"/api/v1/namespaces/{quote(self._api.namespace)}/pods"
        body = probe_pod.build(probe, name, self._api.namespace)
        try:
            pod = self._client.request("POST", space, body)
        except ApiError as error:
            why = rejection_reason(error.status, error.reason, error.detail, self._clock())
            if why.reason == Reason.OPERATOR_FORBIDDEN:  # here it is the user's own request
                yield Finding("pod", "unknown", "you may not create one, so nothing is checked from inside")
            else:
                yield Finding("pod", "bad", f"a pod is refused: {why.message}", why.remedy)
            return
        try:
            yield from self._watched(probe, pod, name, timeout_s)
        finally:
            try:
                self._client.request("DELETE", f"{space}/{name}", {"gracePeriodSeconds": 0})
            except NotFoundError:
                pass
            except ApiError as error:
                remedy = f"kubectl -n {self._api.namespace} delete pod {name}"
                yield Finding("pod", "bad", f"{name} stays: {error.detail}", remedy)

    def _watched(self, probe: Probe, pod: Json, name: str, timeout_s: float) -> Iterator[Finding]:
        began = self._clock()
        path = f"/api/v1/namespaces/{quote(self._api.namespace)}/pods/{name}"
        asked_for_events = 0.0
        complaint = ""
        while True:
            phase = (pod.get("status") or {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                break
            now = self._clock()
            if now - asked_for_events > 3.0:
                asked_for_events = now
                complaint = self._complaint(name)
            why = pending_reason(pod, now, event=complaint)
            stuck = why is not None and (why.severity == "stuck" or why.reason == Reason.IMAGE_PULL_FAILED)
            if stuck or now - began > timeout_s:
                text = why.message if why else f"it has not ended after {timeout_s:.0f} s ({phase})"
                remedy = why.remedy if why else "a longer --timeout, or ask a cluster administrator"
                yield Finding("pod", "bad", text, remedy)
                return
            self._sleep(POLL_INTERVAL_S)
            pod = self._client.request("GET", path)
        log = b"".join(self._api.log(name)).decode(errors="replace")
        found = probe_pod.read(log)
        took = self._clock() - began
        if found is None:
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
            yield no_answer_finding(probe, pod, last)
            return
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        yield from inside_findings(probe, found, node, took)
        if "time" in found:
            yield self._node_clock(node, float(found["time"]), began)

    def _node_clock(self, node: str, theirs: float, began: float) -> Finding:
        # It was read at some time since the pod was created: only what lies outside of that is a difference.
        now = self._clock()
        return clock_finding(f"clock of node {node}", theirs, min(max(theirs, began), now))

    def _complaint(self, name: str) -> str:
        path = f"/api/v1/namespaces/{quote(self._api.namespace)}/events"
        chosen = f"involvedObject.kind=Pod,involvedObject.name={name},type=Warning"
        try:
            found = self._client.request("GET", path, query={"fieldSelector": chosen}).get("items") or []
        except ApiError:
            return ""  # Without the permission to see events less is known.
        return f"{found[-1].get('reason')}: {found[-1].get('message')}" if found else ""


def _count(quantity: object) -> int:
    """Return a number of devices, 0 where there is none; large ones are written as "16k"."""
    if not isinstance(quantity, str | int):
        return 0
    try:
        return int(parse_quantity(quantity))
    except InvalidInputError:
        return 0
