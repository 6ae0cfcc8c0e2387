"""Connections to a port of a pod through the API server, as `kubectl port-forward` makes them.

The protocol is `v4.channel.k8s.io` over a WebSocket: each binary message begins with the number of a channel, 0 for
data and 1 for errors; the first message on each is the port. One WebSocket carries one connection.

Nothing listens on this machine: a connection is one end of a socket pair, so no other process can use it.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import select
import socket
import ssl
import threading
from urllib.parse import quote

from trialpod.errors import TrialpodError
from trialpod_operator.kube_client.api import ApiError, KubeClient
from trialpod_operator.kube_client.kubeconfig import Access
from trialpod_operator.kube_client.service_address import PodPort, ServiceAddress, find_pod

logger = logging.getLogger(__name__)

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_PIECE = 64 * 1024
_MAX_FRAME = 16 * 1024 * 1024


class PortForwardError(OSError):
    """There is no connection through the API server; the message says why."""


class PortForward:
    """Connections to a Service through the API server, with the rights of a user. Safe for use by many threads.

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
                    return self._connect(known, timeout_s)
            pod = self._find()
            connected = self._connect(pod, timeout_s)
        except ApiError as error:
            raise PortForwardError(self._refusal(error)) from error
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

    def _connect(self, pod: PodPort, timeout_s: float) -> socket.socket:
        return connect(KubeClient(self._access), pod.namespace, pod.pod, pod.port, timeout_s)

    def _refusal(self, error: ApiError) -> str:
        if error.status not in (401, 403):
            return str(error)
        namespace = self._address.namespace
        return (
            f"you may not forward ports to pods in the namespace {namespace}: `kubectl auth can-i get "
            f"pods/portforward -n {namespace}` tests it; the role edit has the right"
        )


def connect(client: KubeClient, namespace: str, pod: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to a port of a pod.

    Args:
        client: of the API server; only its access is used.
        namespace: of the pod.
        pod: its name.
        port: that a container of it listens on.
        timeout_s: for the API server to answer.

    Raises:
        ApiError: the API server refuses.
        ClusterUnreachableError: it does not answer.
    """
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": PROTOCOL,
    }
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/portforward"
    remote, early = client.upgrade(path, headers, query={"ports": str(port)}, timeout_s=timeout_s)
    ours, theirs = socket.socketpair()
    pump = _Pump(remote, theirs, early, f"{namespace}/{pod}:{port}")
    threading.Thread(target=pump.run, name="trialpod-port-forward", daemon=True).start()
    return ours


class _Pump:
    """Carries bytes between a WebSocket and one end of a socket pair, until either closes.

    Args:
        remote: connection to the API server.
        local: the end of the pair.
        early: what came on `remote` already.
        name: for the log.
    """

    def __init__(self, remote: socket.socket, local: socket.socket, early: bytes, name: str) -> None:
        self._remote = remote
        self._local = local
        self._buffer = bytearray(early)
        self._message = bytearray()
        self._begun: set[int] = set()
        self._name = name

    def run(self) -> None:
        """Carry on until the end."""
        try:
            with self._remote, self._local:
                self._carry()
        except OSError as error:
            logger.debug("the port-forward to %s ended: %s", self._name, error)

    def _carry(self) -> None:
        poll = select.poll()
        poll.register(self._local, select.POLLIN)
        poll.register(self._remote, select.POLLIN)
        while self._take_frames():
            # What TLS has decrypted already, poll does not see.
            pending = isinstance(self._remote, ssl.SSLSocket) and self._remote.pending() > 0
            ready = dict(poll.poll(0 if pending else None))
            if pending or self._remote.fileno() in ready:
                data = self._remote.recv(_PIECE)
                if not data:
                    return
                self._buffer += data
            if self._local.fileno() in ready:
                data = self._local.recv(_PIECE)
                if not data:
                    self._send(_CLOSE, b"")
                    return
                self._send(_BINARY, bytes((_DATA,)) + data)

    def _send(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = bytes((0x80 | opcode, 0x80 | length))
        elif length < 65536:
            head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | opcode, 0x80 | 127)) + length.to_bytes(8, "big")
        # A client has to mask what it sends; the mask of zeros leaves it as it is.
        self._remote.sendall(head + bytes(4) + payload)

    def _take_frames(self) -> bool:
        """Take the whole frames that are there; return False at the end of the connection."""
        while (frame := self._next_frame()) is not None:
            final, opcode, payload = frame
            if opcode == _CLOSE:
                with contextlib.suppress(OSError):
                    self._send(_CLOSE, payload[:2])
                return False
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode in (_CONTINUATION, _TEXT, _BINARY):
                self._message += payload
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    if not self._take_message(message):
                        return False
        return True

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start], "big")
        masked = buffer[1] & 0x80
        if masked or length > _MAX_FRAME:
            raise OSError("the API server sent what is not a WebSocket frame of a server")
        if len(buffer) < start + length:
            return None
        frame = bool(buffer[0] & 0x80), buffer[0] & 0x0F, bytes(buffer[start : start + length])
        del buffer[: start + length]
        return frame

    def _take_message(self, message: bytes) -> bool:
        if not message:
            return True
        channel, payload = message[0], message[1:]
        if channel not in self._begun:
            self._begun.add(channel)
            payload = payload[2:]  # the port
        if channel == _ERROR and payload:
            logger.info("the port-forward to %s: %s", self._name, payload.decode(errors="replace"))
            return False
        if channel == _DATA and payload:
            self._local.sendall(payload)
        return True
