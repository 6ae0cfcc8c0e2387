"""A stand-in for the API server: keeps objects, answers as Kubernetes does, in this process."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import V1PodSpec

Json = dict[str, Any]
GROUP = "/apis/trialpod.dev/v1alpha1"


class Cut(bytes):
    """Text in an answer that breaks off after it."""


class ApiServer:
    """Serves until it is closed. `objects` is keyed by (resource, name); `requests` are (method, path)."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorizations: list[str | None] = []
        self.heads: list[Message] = []
        """The headers of all requests."""
        self.installed = True
        self.refuse: Json | None = None
        self.routes: dict[tuple[str, str], Json | bytes | Callable[[Any], Json | bytes]] = {}
        """Answers by method and path, before all else; {"code": ...} is a refusal, bytes are text. A function is
        given the request's body. Of a log, lines come with timestamps and from a time on when that was asked for."""
        self.bodies: list[Any] = []
        self.forwards: dict[tuple[str, str], int] = {}
        """Ports of this machine by the pod's path and its port, for port-forwards."""
        self.closes_connections = False
        """Whether it closes each connection after an answer, without saying so."""
        self.before_get: Callable[[str, str], None] = lambda _resource, _name: None
        self.tells_namespaces_apart = False
        """Whether an object is only in its own namespace. Names are unique in all of them."""
        self._versions = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in one packet

            def log_message(self, *args: Any) -> None:
                pass

            def _serve(self) -> None:
                if self.headers.get("Upgrade") == "websocket" and self._forward():
                    return
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.authorizations.append(self.headers.get("Authorization"))
                outer.heads.append(self.headers)
                status, answer = outer._answer(self.command, self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                cut = isinstance(answer, Cut)
                if cut:  # as a log that is followed comes
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if cut else data)
                self.close_connection = self.close_connection or outer.closes_connections or cut

            def _forward(self) -> bool:
                """Carry a port-forward to its end; return whether there is one for this path."""
                parts = urlsplit(self.path)
                port = parse_qs(parts.query).get("ports", [""])[0]
                target = outer.forwards.get((parts.path, port))
                if target is None:
                    return False
                outer.requests.append((self.command, parts.path))
                outer.authorizations.append(self.headers.get("Authorization"))
                outer.heads.append(self.headers)
                carry_port_forward(self, int(port), target)
                self.close_connection = True
                return True

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "secret-token"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def put(self, resource: str, item: Json) -> None:
        self._versions += 1
        item["metadata"].setdefault("uid", f"uid-{self._versions}")
        item["metadata"].setdefault("generation", 1)
        self.objects[resource, item["metadata"]["name"]] = item

    def experiment(self, name: str) -> Json:
        return self.objects["tuneexperiments", name]

    def _answer(self, method: str, target: str, body: Any) -> tuple[int, Json | bytes]:
        parts = urlsplit(target)
        self.requests.append((method, parts.path))
        self.bodies.append(body)
        query = parse_qs(parts.query)
        if callable(routed := self.routes.get((method, parts.path))):
            routed = routed(body)
        if isinstance(routed, bytes) and parts.path.endswith("/log") and "timestamps" in query:
            routed = type(routed)(stamped(routed, query.get("sinceTime", [""])[0]))
        if routed is not None:
            return (routed.get("code", 200) if isinstance(routed, dict) else 200), routed
        if self.refuse is not None:
            return self.refuse["code"], self.refuse
        if parts.path.startswith(GROUP) and not self.installed:
            return 404, {"reason": "NotFound", "message": "the server could not find the requested resource"}
        inside, _, rest = parts.path.rpartition("/namespaces/")
        tail = rest.split("/")[1:] if inside else [rest.rpartition("/")[2]]
        resource, name = tail[0], tail[1] if len(tail) > 1 else ""
        if method == "GET":
            self.before_get(resource, name)
        if method == "DELETE":
            gone = self.objects.pop((resource, name), None)
            return (200, {}) if gone else missing(resource, name)
        if method == "PATCH" and query.get("fieldManager") and (resource, name) not in self.objects:
            self.put(resource, body)
            return 201, body
        if method == "POST" and query.get("dryRun"):
            fields = body["spec"].keys() - V1PodSpec.attribute_map.values()
            if query["fieldValidation"] == ["Strict"] and fields:
                unknown = ", ".join(f'unknown field "spec.{field}"' for field in sorted(fields))
                return 400, {"reason": "BadRequest", "message": f"strict decoding error: {unknown}"}
            return 201, body
        if method == "POST":
            name = body["metadata"]["name"]
            if (resource, name) in self.objects:
                return 409, {"reason": "AlreadyExists", "message": f'{resource} "{name}" already exists'}
            self.put(resource, body)
            return 201, body
        if not name:
            wanted = query.get("labelSelector", [""])[0].rpartition("=")[2]
            items = [
                item
                for (kind, _), item in sorted(self.objects.items())
                if kind == resource and (not wanted or wanted in (item["metadata"].get("labels") or {}).values())
            ]
            start, limit = int(query.get("continue", ["0"])[0] or 0), int(query.get("limit", ["500"])[0])
            rest = str(start + limit) if start + limit < len(items) else ""
            return 200, {"items": items[start : start + limit], "metadata": {"continue": rest}}
        found = self.objects.get((resource, name))
        place = rest.partition("/")[0] if inside else ""
        if found is None or (self.tells_namespaces_apart and found["metadata"].get("namespace", place) != place):
            return missing(resource, name)
        if method == "PATCH":
            wanted_version = body.get("metadata", {}).get("resourceVersion")
            if wanted_version and wanted_version != version_of(found):
                return 409, {"reason": "Conflict", "message": "the object has been modified"}
            before = json.dumps(found.get("spec"))
            for key, value in body.get("spec", {}).items():
                found["spec"][key] = value
                if value is None:
                    del found["spec"][key]
            notes = found["metadata"].setdefault("annotations", {})
            for key, value in body.get("metadata", {}).get("annotations", {}).items():
                notes[key] = value
                if value is None:
                    del notes[key]
            found["metadata"]["generation"] += json.dumps(found.get("spec")) != before
        return 200, {**found, "metadata": {**found["metadata"], "resourceVersion": version_of(found)}}


def version_of(item: Json) -> str:
    """Return an object's resourceVersion: another one after each change."""
    return hashlib.sha1(json.dumps(item).encode()).hexdigest()[:12]


def stamped(log: bytes, since: str) -> bytes:
    """Return a log with the time before each line: two lines in a second. `since` counts in whole seconds."""
    lines = [
        (f"2026-11-21T10:{number // 120:02d}:{number // 2 % 60:02d}.{number % 2}00000000Z ", line)
        for number, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", log))
    ]
    return b"".join(stamp.encode() + line for stamp, line in lines if stamp[:19] >= since[:19])


def missing(resource: str, name: str) -> tuple[int, Json]:
    """The answer for an object that is not there."""
    message = f'{resource}.trialpod.dev "{name}" not found'
    return 404, {"reason": "NotFound", "message": message, "details": {"name": name, "kind": resource}}


def carry_port_forward(handler: BaseHTTPRequestHandler, port: int, target: int) -> None:
    """Play the kubelet: `v4.channel.k8s.io` over a WebSocket on one side, a port of this machine on the other."""
    assert "v4.channel.k8s.io" in handler.headers["Sec-WebSocket-Protocol"].split(",")
    digest = hashlib.sha1(f"{handler.headers['Sec-WebSocket-Key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode())
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", base64.b64encode(digest.digest()).decode())
    handler.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    handler.end_headers()

    def send(data: bytes, opcode: int = 2, *, final: bool = True) -> None:
        size = bytes((len(data),)) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        handler.wfile.write(bytes((0x80 * final | opcode,)) + size + data)
        handler.wfile.flush()

    number = struct.pack("<H", port)
    send(b"\0" + number)
    send(b"\1" + number)
    send(b"are you there", opcode=9)
    try:
        upstream = socket.create_connection(("127.0.0.1", target), timeout=10)
    except OSError as error:
        send(b"\1" + f"cannot connect to the port {port}: {error.strerror}".encode())
        return

    def answer() -> None:
        with contextlib.suppress(OSError):  # The client is gone.
            while data := upstream.recv(30000):
                send(b"\0" + data[:10], final=False)
                send(data[10:], opcode=0)
            send(b"", opcode=8)

    upstream.settimeout(None)  # The connection ends when one side closes it: a slow machine is no error.
    with upstream:
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        while len(head := handler.rfile.read(2)) == 2 and head[0] & 0x0F != 8:
            length = head[1] & 0x7F
            if length >= 126:
                length = int.from_bytes(handler.rfile.read(2 if length == 126 else 8), "big")
            mask = handler.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(handler.rfile.read(length)))
            if head[0] & 0x0F == 2:
                assert data[:1] == b"\0"
                upstream.sendall(data[1:])
        with contextlib.suppress(OSError):  # The other side closed it before.
            upstream.shutdown(socket.SHUT_RDWR)
        answering.join()


def experiment_object(name: str, spec: Json | None = None, **status: Any) -> Json:
    """A TuneExperiment as the server has it."""
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "generation": 1},
        "spec": spec or {"metric": "loss", "mode": "min"},
        "status": {"observedGeneration": 1, **status} if status else {},
    }


def trial_object(experiment: str, index: int, state: str, **status: Any) -> Json:
    """A TuneTrial as the server has it."""
    trial_id = f"d75de_{index:05d}"
    name = f"{experiment}-{trial_id.replace('_', '-')}"
    labels = {"trialpod.dev/experiment": experiment, "trialpod.dev/trial-id": trial_id}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"experiment": experiment, "trialId": trial_id, "index": index, "params": {"lr": index / 10}},
        "status": {"state": state, "attempt": 1, "iteration": 3, "failures": 0, "disruptions": 0, **status},
    }


def condition_of(kind: str, status: str, reason: str, message: str = "") -> Json:
    """A condition."""
    time = "2026-11-21T10:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}


Run = Callable[..., str]
"""The fixture that runs a command against it and returns what that printed."""
