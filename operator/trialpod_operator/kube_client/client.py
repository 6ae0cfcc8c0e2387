"""The experiments of a namespace, for scripts and commands: TuneExperiments, TuneTrials, their pods and events.

Invariants: every error says what was not possible, and what to do: the missing permission, the nearest name, how to
install what is not there.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trialpod.errors import InvalidInputError, TrialpodError, nearest
from trialpod_operator.api.api_errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    KindNotFoundError,
    NamespaceNotFoundError,
    NotFoundError,
    UnauthorizedError,
)
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.shards.assignment import handover, unserved_since
from trialpod_operator.kube_client.api import APPLY_PATCH, MERGE_PATCH, KubeClient
from trialpod_operator.kube_client.kubeconfig import find_access

CHART = "helm install trialpod charts/trialpod"
_PAGE = 500

LEASE = "trialpod-operator"
"""Name of the coordinator's Lease in the chart."""

LEASE_CLOCK_SKEW_S = 10.0
"""Maximum difference between the clocks of this machine and of the operator's node."""

Json = dict[str, Any]


class ExperimentNotFoundError(InvalidInputError):
    """There is no experiment of that name; the message has the nearest ones."""


class MissingRightError(InvalidInputError):
    """The user may not do that; the message names the permission that is missing."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A LocalQueue of Kueue, as far as it may be seen: `cluster` is its ClusterQueue, `pending` what waits in it."""

    name: str
    local: Json
    cluster: Json | None
    pending: list[Json]


class Experiments:
    """The experiments of one namespace. Use it in a ``with``: it keeps a connection.

    Args:
        client: of the cluster.
        namespace: None takes the one of the kubeconfig's context.
    """

    def __init__(self, client: KubeClient, namespace: str | None = None) -> None:
        self.client = client
        self.namespace = namespace or client.access.namespace

    @classmethod
    def connect(
        cls, namespace: str | None = None, *, context: str | None = None, kubeconfig: str | None = None
    ) -> Experiments:
        """Find the cluster that this process is configured for.

        Args:
            namespace: None takes the one of the kubeconfig's context.
            context: None takes the kubeconfig's current one.
            kubeconfig: path of the file; None takes KUBECONFIG, or ~/.kube/config.

        Raises:
            InvalidInputError: it is configured for none.
        """
        environ = {**os.environ, "KUBECONFIG": kubeconfig} if kubeconfig else os.environ
        return cls(KubeClient(find_access(environ, context=context)), namespace)

    def __enter__(self) -> Experiments:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, name: str) -> Json:
        """Return a TuneExperiment.

        Raises:
            ExperimentNotFoundError: there is none; the message has the nearest names.
            InvalidInputError: trialpod is not installed there, or the user may not look.
            ClusterUnreachableError: the cluster cannot be reached.
        """
        found = self.find(name)
        if found is None:
            raise ExperimentNotFoundError(self._absent(name))
        return found

    def find(self, name: str) -> Json | None:
        """Return a TuneExperiment, None when there is none; raises as `get` otherwise."""
        return self._find(names.EXPERIMENTS, name)

    def names(self) -> list[str]:
        """Return the names of the namespace's experiments."""
        return [
            str(item["metadata"]["name"]) for item in self._list(self._path(names.EXPERIMENTS), names.EXPERIMENTS)
        ]

    def all(self, *, everywhere: bool = False) -> list[Json]:
        """Return the experiments of the namespace, or of all namespaces, by namespace and name."""
        path = f"/apis/{names.API_VERSION}/{names.EXPERIMENTS}" if everywhere else self._path(names.EXPERIMENTS)
        found = self._list(path, names.EXPERIMENTS, everywhere=everywhere)
        return sorted(found, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))

    def find_trial(self, name: str) -> Json | None:
        """Return a TuneTrial, by its own name or by its trial's id; None when there is none."""
        if "_" not in name:
            return self._find(names.TRIALS, name)
        selector = f"{names.TRIAL_ID_LABEL}={name}"
        found = self._list(self._path(names.TRIALS), names.TRIALS, {"labelSelector": selector})
        return found[0] if len(found) == 1 else None

    def pods(self, name: str) -> list[Json]:
        """Return the pods of an experiment that exist."""
        selector = f"{names.EXPERIMENT_LABEL}={name}"
        return self._list(self._core_path("pods"), "pods", {"labelSelector": selector})

    def trials(self, name: str) -> list[Json]:
        """Return the TuneTrials of an experiment in the order of their creation."""
        selector = f"{names.EXPERIMENT_LABEL}={name}"
        found = self._list(self._path(names.TRIALS), names.TRIALS, {"labelSelector": selector})
        return sorted(found, key=lambda item: int((item.get("spec") or {}).get("index", 0)))

    def events(self, name: str, uid: str = "") -> list[Json]:
        """Return the events about an experiment, the latest last; none when they may not be seen."""
        chosen = f"involvedObject.kind={names.EXPERIMENT_KIND},involvedObject.name={name}"
        try:
            found = self._list(self._core_path("events"), "events", {"fieldSelector": chosen})
        except InvalidInputError:
            return []  # they only add to the status, which is shown without them
        own = [event for event in found if not uid or (event.get("involvedObject") or {}).get("uid", uid) == uid]
        return sorted(own, key=event_time)

    def queue(self, name: str) -> QueueFacts | None:
        """Return a LocalQueue of Kueue, as far as it may be seen; None when there is none, or none may be seen."""
        for version in queues.VERSIONS:
            root = f"/apis/{queues.GROUP}/{version}"
            local = self._seen(f"{root}/namespaces/{quote(self.namespace)}/localqueues/{quote(name)}")
            if local is None:
                continue
            owner = str((local.get("spec") or {}).get("clusterQueue") or "")
            cluster = self._seen(f"{root}/clusterqueues/{quote(owner)}") if owner else None
            place = f"namespaces/{quote(self.namespace)}/localqueues/{quote(name)}/pendingworkloads"
            pending = self._seen(f"/apis/visibility.{queues.GROUP}/{version}/{place}") or {}
            return QueueFacts(name, local, cluster, list(pending.get("items") or ()))
        return None

    def workloads(self, pods: Iterable[Json]) -> list[str]:
        """Return the names of the Workloads of these pods; none where they may not be seen."""
        uids = {str(pod["metadata"].get("uid")) for pod in pods}
        for version in queues.VERSIONS:
            found = self._seen(f"/apis/{queues.GROUP}/{version}/namespaces/{quote(self.namespace)}/workloads")
            if found is not None:
                return [
                    str(each["metadata"]["name"])
                    for each in found.get("items") or ()
                    if any(owner.get("uid") in uids for owner in each["metadata"].get("ownerReferences") or ())
                ]
        return []

    def _seen(self, path: str) -> Json | None:
        """Return an object that only adds to the rest; None when it does not exist, or the user may not see it."""
        try:
            return self.client.request("GET", path)
        except ApiError:
            return None

    def create(self, manifest: Json) -> Json:
        """Create a TuneExperiment; raises as `get`, and an `AlreadyExistsError` when the name is taken."""
        try:
            return self.client.request(
                "POST", self._path(names.EXPERIMENTS), manifest, query={"fieldManager": "trialpod-client"}
            )
        except AlreadyExistsError:
            raise
        except ApiError as error:
            raise self._explained(error, "create", names.EXPERIMENTS) from error

    def apply(self, manifest: Json, *, force: bool = False) -> Json:
        """Create the experiment, or give it what the manifest says (server-side apply, field manager `trialpod`).

        Args:
            manifest: the complete manifest.
            force: take over fields that other field managers have set.
        """
        name = str(manifest["metadata"]["name"])
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict", **({"force": "true"} if force else {})}
        try:
            return self.client.request(
                "PATCH", self._path(names.EXPERIMENTS, name), manifest, query=query, content_type=APPLY_PATCH
            )
        except ConflictError as error:
            raise InvalidInputError(
                f"{name}: others have set fields that this manifest sets too: {error.detail}; "
                "--force-conflicts takes them over"
            ) from error
        except ApiError as error:
            raise self._explained(error, "patch", names.EXPERIMENTS) from error

    def change(self, name: str, spec: Json, *, version: str = "") -> Json:
        """Change fields of an experiment's spec; None removes a field.

        Args:
            name: the experiment's.
            spec: the fields.
            version: only if this is its `resourceVersion`; "" = whatever it is.

        Raises:
            ConflictError: it is another one.
        """
        metadata = {"metadata": {"resourceVersion": version}} if version else {}
        return self._patch(names.EXPERIMENTS, name, {**metadata, "spec": spec})

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> Json:
        """Change annotations of an experiment; None removes one."""
        return self._patch(names.EXPERIMENTS, name, {"metadata": {"annotations": dict(annotations)}})

    def stop_trial(self, trial: str) -> Json:
        """Request that a trial stops."""
        return self._patch(names.TRIALS, trial, {"spec": {"stop": True}})

    def may(self, verb: str, resource: str) -> bool:
        """Return whether the user has a permission in the namespace; False when the API server does not say."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": names.GROUP, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            found = self.client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        except ApiError:
            return False
        return bool((found.get("status") or {}).get("allowed"))

    def delete(self, name: str, *, uid: str = "") -> None:
        """Delete an experiment, with its trials and pods; `uid`: only if it is still that one."""
        body: Json = {"propagationPolicy": "Background", **({"preconditions": {"uid": uid}} if uid else {})}
        try:
            self.client.request("DELETE", self._path(names.EXPERIMENTS, name), body)
        except ApiError as error:
            if not is_absent(error):
                raise self._explained(error, "delete", names.EXPERIMENTS) from error

    def log(
        self,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        timestamps: bool = False,
        since: str = "",
    ) -> Iterator[bytes]:
        """Yield the lines that a pod has printed; with `follow` until it ends, and parts of lines too.

        Args:
            pod: its name.
            container: of the pod; "" = its only one.
            follow: wait for more.
            previous: of the container that ran before in its place.
            timestamps: put the time before each line, to the nanosecond.
            since: only lines of this time, to the second, or later.

        Raises:
            ApiError: there is no such pod, or it has not started.
            MissingRightError: the user may not read logs.
        """
        flags = {"follow": follow, "previous": previous, "timestamps": timestamps}
        query = {name: "true" for name, given in flags.items() if given}
        query |= {name: text for name, text in (("container", container), ("sinceTime", since)) if text}
        try:
            yield from self.client.lines(f"{self._core_path('pods', pod)}/log", query=query, partial=follow)
        except (UnauthorizedError, ForbiddenError) as error:
            raise self._explained(error, "get", "pods/log") from error

    def secret(self, name: str) -> Json | None:
        """Return a Secret of the namespace, None when there is none.

        Raises:
            MissingRightError: the user may not read it.
        """
        try:
            return self.client.request("GET", self._core_path("secrets", name))
        except NotFoundError:
            return None
        except ApiError as error:
            raise self._explained(error, "get", "secrets") from error

    def operator_facts(self) -> dict[str, str]:
        """Return the operator's annotations in this namespace; empty when there are none, or none may be seen."""
        try:
            found = self.client.request("GET", self._core_path("configmaps", names.CA_CONFIG_MAP))
        except ApiError:
            return {}  # they are only used for warnings
        notes = (found.get("metadata") or {}).get("annotations") or {}
        return {key: str(value) for key, value in notes.items() if key.startswith(f"{names.GROUP}/")}

    def operator_silence(self, now: float, uid: str = "") -> str | None:
        """Return that no operator is active, or none for an experiment; None when one is, or the user may not know.

        Args:
            now: seconds since the epoch.
            uid: of the experiment.
        """
        service = self.operator_facts().get(names.REPORTS_ANNOTATION, "")
        host = service.partition("://")[2].partition("/")[0].partition(":")[0].split(".")
        if len(host) < 2:
            return None  # no operator has served this namespace
        namespace = host[1]
        path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{LEASE}"
        try:
            lease = self.client.request("GET", path)
        except NotFoundError:
            return f"no operator is active: there is no Lease {LEASE} in the namespace {namespace}"
        except ApiError:
            return None
        spec = lease.get("spec") or {}
        renewed = dt.datetime.fromisoformat(str(spec["renewTime"])).timestamp() if spec.get("renewTime") else 0.0
        if not spec.get("holderIdentity"):
            return f"no operator is active: no replica holds the Lease {LEASE} in the namespace {namespace}"
        if now - renewed <= float(spec.get("leaseDurationSeconds") or 15) + LEASE_CLOCK_SKEW_S:
            notes = (lease.get("metadata") or {}).get("annotations") or {}
            if not uid:
                return None
            unserved = unserved_since(str(notes.get(names.UNSERVED_ANNOTATION) or ""), uid)
            return unserved or handover(str(notes.get(names.SHARDS_ANNOTATION) or ""), uid)
        return f"no operator is active: the Lease {LEASE} in {namespace} was renewed {now - renewed:.0f} s ago"

    def _patch(self, resource: str, name: str, body: Json) -> Json:
        try:
            return self.client.request("PATCH", self._path(resource, name), body, content_type=MERGE_PATCH)
        except ApiError as error:
            if is_absent(error) and resource == names.EXPERIMENTS:
                raise ExperimentNotFoundError(self._absent(name)) from error
            raise self._explained(error, "patch", resource) from error

    def _find(self, resource: str, name: str) -> Json | None:
        try:
            return self.client.request("GET", self._path(resource, name))
        except ApiError as error:
            if is_absent(error):
                return None
            raise self._explained(error, "get", resource) from error

    def _list(
        self, path: str, what: str, query: Mapping[str, str] | None = None, *, everywhere: bool = False
    ) -> list[Json]:
        items: list[Json] = []
        rest = ""
        while True:
            page = {**(query or {}), "limit": str(_PAGE), **({"continue": rest} if rest else {})}
            try:
                found = self.client.request("GET", path, query=page)
            except ApiError as error:
                if isinstance(error, GoneError) and rest:
                    items, rest = [], ""  # the list has become too old between two pages
                    continue
                raise self._explained(error, "list", what, everywhere=everywhere) from error
            items += found.get("items") or []
            rest = str((found.get("metadata") or {}).get("continue") or "")
            if not rest:
                return items

    def _path(self, resource: str, name: str = "") -> str:
        path = f"/apis/{names.API_VERSION}/namespaces/{quote(self.namespace)}/{resource}"
        return f"{path}/{quote(name)}" if name else path

    def _core_path(self, resource: str, name: str = "") -> str:
        path = f"/api/v1/namespaces/{quote(self.namespace)}/{resource}"
        return f"{path}/{quote(name)}" if name else path

    def _absent(self, name: str) -> str:
        try:
            known = self.names()
        except InvalidInputError:  # they may not be listed
            return f"there is no TuneExperiment {name} in the namespace {self.namespace}"
        guess = nearest(name, known)
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        hint = f"; did you mean {guess}?" if guess else ""
        there = f" (there are: {shown})" if known else "; there is none at all: is it in another namespace (-n)?"
        return f"there is no TuneExperiment {name} in the namespace {self.namespace}{hint}{there}"

    def _explained(self, error: ApiError, verb: str, what: str, *, everywhere: bool = False) -> TrialpodError:
        ours = what in (names.EXPERIMENTS, names.TRIALS)
        if isinstance(error, NamespaceNotFoundError):
            return InvalidInputError(
                f"there is no namespace {self.namespace}; use another one (-n), or create it: "
                f"kubectl create namespace {self.namespace}"
            )
        if isinstance(error, KindNotFoundError) and ours:
            return InvalidInputError(
                f"trialpod is not installed in the cluster at {self.client.access.server}: it does not know "
                f"{names.EXPERIMENT_KIND}s; a cluster administrator can install it: {CHART}"
            )
        if isinstance(error, ForbiddenError):
            group = f".{names.GROUP}" if ours else ""
            role = "view" if verb in ("get", "list") and what != "secrets" else "edit"
            place, flag = f"the namespace {self.namespace}", f"-n {self.namespace}"
            hint = f"the role {role} has the permission"
            if everywhere:
                place, flag, hint = (
                    "all namespaces",
                    "-A",
                    "without -A only one namespace is listed, which may be allowed",
                )
            return MissingRightError(
                f"you may not {verb} {what} in {place}: {error.detail}; "
                f"`kubectl auth can-i {verb} {what}{group} {flag}` tests it; {hint}"
            )
        if isinstance(error, UnauthorizedError):
            return InvalidInputError(
                f"the cluster at {self.client.access.server} does not accept who you are (from "
                f"{self.client.access.source}); log in again"
            )
        if isinstance(error, (BadRequestError, InvalidObjectError)):
            return InvalidInputError(f"the cluster refuses the experiment: {error.detail}")
        return error


def is_absent(error: ApiError) -> bool:
    """Return whether it is the object that is missing, and not its kind or its namespace."""
    return isinstance(error, NotFoundError) and not isinstance(error, (KindNotFoundError, NamespaceNotFoundError))


def event_time(event: Mapping[str, Any]) -> str:
    """Return when an event happened last, in RFC 3339; "" when it does not say."""
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
