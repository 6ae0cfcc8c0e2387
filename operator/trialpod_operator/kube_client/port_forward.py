"""Connections to a port of a pod through the API server, as `kubectl port-forward` makes them.

Nothing listens on this machine: a connection is one end of a socket pair, so no other process can use it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import ApiError, ForbiddenError, UnauthorizedError, api_error
from trialpod_operator.kube_client.api import ClusterUnreachableError, KubeClient
from trialpod_operator.kube_client.kubeconfig import Access
from trialpod_operator.kube_client.service_address import PodPort, ServiceAddress, find_pod

if TYPE_CHECKING:
    from kubernetes.client.exceptions import ApiException


PROTOCOLS = "v5.channel.k8s.io,v4.channel.k8s.io"
"""Of port-forwards, as the client asks for them."""


class PortForwardError(OSError):
    """There is no connection through the API server; the message says why."""


class PortForward:
    """Connections to a Service through the API server, with the permissions of a user. Safe for use by many threads.

    Args:
        access: to the API server.
        address: of the Service.
    """

    def __init__(self, access: Access, address: ServiceAddress) -> None:
        self._access = access
        self._address = address
        self._lock = threading.Lock()
        self._pod: PodPort | None = None
        self._spare: list[socket.socket] = []

    def check(self, timeout_s: float) -> None:
        """Connect once; the next `dial` returns that connection.

        Raises:
            PortForwardError: it is not possible.
        """
        self._spare.append(self.dial(timeout_s))

    def dial(self, timeout_s: float) -> socket.socket:
        """Return a connection.

        Args:
            timeout_s: for the API server to answer.

        Raises:
            PortForwardError: it is not possible.
        """
        with self._lock:
            if self._spare:
                return self._spare.pop()
            known = self._pod
        try:
            if known is not None:
                with contextlib.suppress(ApiError):  # the pod has been replaced meanwhile
                    return connect(self._access, known, timeout_s)
            pod = self._find()
            connected = connect(self._access, pod, timeout_s)
        except (UnauthorizedError, ForbiddenError) as error:
            namespace = self._address.namespace
            raise PortForwardError(
                f"you may not forward ports to pods in the namespace {namespace}; that takes get and, since "
                f"Kubernetes 1.35, create of pods/portforward (the role edit has both): "
                f"`kubectl auth can-i create pods/portforward -n {namespace}` tests it"
            ) from error
        except TrialpodError as error:
            raise PortForwardError(str(error)) from error
        with self._lock:
            self._pod = pod
        return connected

    def _find(self) -> PodPort:
        client = KubeClient(self._access)
        try:
            return find_pod(lambda path: client.request("GET", path), self._address)
        finally:
            client.close()


_websocket_timeout = threading.Lock()
"""Held while the timeout of new WebSockets is set: the client takes none, and it is one for the process."""


def connect(access: Access, pod: PodPort, timeout_s: float) -> socket.socket:
    """Connect to a port of a pod.

    Args:
        access: to the API server.
        pod: the pod and the port that a container of it listens on.
        timeout_s: for the API server to answer.

    Raises:
        ApiError: the API server refuses.
        ClusterUnreachableError: it does not answer.
    """
    import websocket
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import portforward

    client = access.client()  # one for each connection: the port-forward replaces its method while it connects
    if access.headers:
        # The client drops what it does not know of a WebSocket's headers. This one it sends as it is given, and so
        # lines can follow it; no value has a line break (`Access`).
        lines = [PROTOCOLS, *(f"{name}: {value}" for name, value in access.headers)]
        client.set_default_header("sec-websocket-protocol", "\r\n".join(lines))
    try:
        with _websocket_timeout:
            before = websocket.getdefaulttimeout()
            websocket.setdefaulttimeout(timeout_s)
            try:
                forward = portforward(
                    CoreV1Api(client).connect_get_namespaced_pod_portforward,
                    pod.pod,
                    pod.namespace,
                    ports=str(pod.port),
                )
            finally:
                websocket.setdefaulttimeout(before)
    except ApiException as error:
        raise _refusal(access, pod, error) from error
    finally:
        client.close()
    forward.websocket.settimeout(None)
    return socket.socket(fileno=forward.socket(pod.port).detach())


def _refusal(access: Access, pod: PodPort, error: ApiException) -> TrialpodError:
    """Return what the client has put into a text: it keeps the WebSocket's exception as the context."""
    import websocket

    cause = error.__context__
    if not isinstance(cause, websocket.WebSocketBadStatusException):
        return ClusterUnreachableError(
            f"the cluster at {access.server} cannot be reached: {error.reason}; is the cluster up, and does `kubectl "
            f"version` work? (from {access.source})"
        )
    try:
        body = json.loads(cause.resp_body or b"")
    except ValueError:
        body = {}
    return api_error("GET", f"{pod.namespace}/{pod.pod}/portforward", cause.status_code, body)
