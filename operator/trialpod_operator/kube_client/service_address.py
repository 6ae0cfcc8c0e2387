"""Addresses inside a cluster: which Service a host name is of, and the pod behind it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import ForbiddenError, NotFoundError, UnauthorizedError

Json = dict[str, Any]
Get = Callable[[str], Json]
"""Asks the API server for a path; raises `ApiError`."""

_DOMAIN = "svc"


class NoPodError(TrialpodError):
    """There is no pod behind an address, or the user may not look for it."""


@dataclass(frozen=True)
class ServiceAddress:
    """A port of a Service.

    Attributes:
        service: its name.
        namespace: its namespace.
        port: of the Service.
        certain: the name cannot be anything else.
        pod: for the name of one pod of a headless Service, its host name.
    """

    service: str
    namespace: str
    port: int
    certain: bool
    pod: str = ""


@dataclass(frozen=True)
class PodPort:
    """A port of a pod."""

    namespace: str
    pod: str
    port: int


def service_address(endpoint: str, namespace: str) -> ServiceAddress | None:
    """Return the Service that a URL names, None when it can be none.

    Args:
        endpoint: such as "http://minio.storage.svc:9000".
        namespace: of those who use it, for a name without one.
    """
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not host or _is_address(host) or host == "localhost" or host.endswith(".localhost"):
        return None
    labels = host.split(".")
    if _DOMAIN in labels[2:4]:
        at = labels.index(_DOMAIN, 2)
        return ServiceAddress(labels[at - 2], labels[at - 1], port, True, labels[0] if at == 3 else "")
    if len(labels) == 1:
        return ServiceAddress(host, namespace, port, True)
    return ServiceAddress(labels[0], labels[1], port, False) if len(labels) == 2 else None


def service_of_ip(get: Get, endpoint: str, namespace: str) -> ServiceAddress | None:
    """Return the Service whose ClusterIP a URL names, None when none is seen that has it.

    Args:
        get: asks the API server.
        endpoint: such as "http://10.96.3.7:9000".
        namespace: where to look when the user may not list the Services of all.
    """
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if not _is_address(host) or not ipaddress.ip_address(host).is_private:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for path in ("/api/v1/services", _path(namespace, "services")):
        try:
            items = get(path).get("items") or ()
        except (UnauthorizedError, ForbiddenError):
            continue
        for each in items:
            if host in ((each.get("spec") or {}).get("clusterIPs") or ()):
                return ServiceAddress(each["metadata"]["name"], each["metadata"]["namespace"], port, False)
        return None
    return None


def find_pod(get: Get, address: ServiceAddress) -> PodPort:
    """Return the pod, ready if one is, behind a Service.

    Raises:
        NoPodError: there is none, or the user may not look; the message says which.
    """
    where = f"the Service {address.service} in the namespace {address.namespace}"
    service = _asked(get, f"{_path(address.namespace, 'services')}/{quote(address.service)}", where, address, "get")
    spec = service.get("spec") or {}
    selector = spec.get("selector") or {}
    if not selector:
        kind = spec.get("type") or "ClusterIP"
        raise NoPodError(f"{where} selects no pods (it is of type {kind})")
    entries = [each for each in spec.get("ports") or () if each.get("port") == address.port]
    if not entries:
        known = ", ".join(str(each.get("port")) for each in spec.get("ports") or ()) or "none"
        raise NoPodError(f"{where} has no port {address.port} (its ports: {known})")
    query = urlencode({"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(selector.items()))})
    listed = _asked(get, f"{_path(address.namespace, 'pods')}?{query}", f"the pods of {where}", address, "list")
    pods = [each for each in listed.get("items") or () if not each["metadata"].get("deletionTimestamp")]
    if address.pod:
        pods = [each for each in pods if each["metadata"]["name"] == address.pod]
    running = [each for each in pods if (each.get("status") or {}).get("phase") == "Running"]
    if not running:
        raise NoPodError(f"{where} has no pod that runs; kubectl -n {address.namespace} get pods")
    pod = max(running, key=_is_ready)
    return PodPort(address.namespace, str(pod["metadata"]["name"]), _target_port(entries[0], pod, where))


def _asked(get: Get, path: str, what: str, address: ServiceAddress, verb: str) -> Json:
    try:
        return get(path)
    except NotFoundError as error:
        raise NoPodError(f"{what} is not there") from error
    except (UnauthorizedError, ForbiddenError) as error:
        resource = "services" if verb == "get" else "pods"
        raise NoPodError(
            f"you may not {verb} {resource} in the namespace {address.namespace}: "
            f"`kubectl auth can-i {verb} {resource} -n {address.namespace}` tests it"
        ) from error


def _path(namespace: str, resource: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/{resource}"


def _target_port(entry: Mapping[str, Any], pod: Mapping[str, Any], where: str) -> int:
    target = entry.get("targetPort") or entry["port"]
    if isinstance(target, int):
        return target
    for container in (pod.get("spec") or {}).get("containers") or ():
        for each in container.get("ports") or ():
            if each.get("name") == target:
                return int(each["containerPort"])
    raise NoPodError(f"{where} leads to the port {target}, which no container of {pod['metadata']['name']} names")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
