"""A small synchronous client of the API server, for scripts and commands: TuneExperiments, TuneTrials, events.

The operator has its own, asynchronous one (`kube`). This one is the standard library's HTTP.

Invariants: every error says what to do. One connection is kept and opened again when the server has closed it; a
request that may have been carried out already is never sent twice, except reading ones.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from trialpod.errors import InvalidInputError, TrialpodError, nearest
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kubeconfig import Access, find_access

TIMEOUT_S = 30.0
MERGE_PATCH = "application/merge-patch+json"
CHART = "helm install trialpod charts/trialpod"
_PAGE = 500

Json = dict[str, Any]


class ClusterUnreachableError(TrialpodError):
    """The API server cannot be reached; it may be tried again."""


class ApiError(TrialpodError):
    """The API server refused a request.

    Attributes:
        status: of the HTTP answer.
        reason: `reason` of the Status object, such as "NotFound".
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


class NotThereError(InvalidInputError):
    """There is no experiment of that name."""


class KubeClient:
    """Requests to one API server.

    Args:
        access: which one, and as whom.
        timeout_s: for one answer.
    """

    def __init__(self, access: Access, *, timeout_s: float = TIMEOUT_S) -> None:
        self.access = access
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send one request and return what is answered.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer.
        """
        target = urlsplit(self.access.server).path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Accept": "application/json", "User-Agent": "trialpod", **self._authorization()}
        if data is not None:
            headers["Content-Type"] = content_type
        fresh = self._connection is None
        try:
            status, answer = self._send(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if fresh or method != "GET":
                raise self._unreachable(error) from error
            try:
                status, answer = self._send(method, target, data, headers)
            except (OSError, http.client.HTTPException) as again:
                self.close()
                raise self._unreachable(again) from again
        try:
            found = json.loads(answer) if answer else {}
        except ValueError:
            found = {"message": answer[:300].decode(errors="replace")}
        if status >= 400 or not isinstance(found, dict):
            found = found if isinstance(found, dict) else {}
            raise ApiError(status, str(found.get("reason") or ""), str(found.get("message") or f"status {status}"))
        return found

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, target, body=data, headers=dict(headers))
        response = self._connection.getresponse()
        answer = response.read()
        if response.will_close:
            self.close()
        return response.status, answer

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.access.server)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        proxy = self.access.proxy or ("" if proxy_bypass(host) else getproxies().get(parts.scheme, ""))
        via = urlsplit(proxy) if proxy else None
        if via is not None and via.scheme != "http":
            raise InvalidInputError(f"the proxy {via.scheme}://{via.hostname} is not supported; use an http:// one")
        near = (via.hostname or "", via.port or 3128) if via is not None else (host, port)
        if self.access.tls is None:
            return http.client.HTTPConnection(*near, timeout=self._timeout_s)
        made = _Https(*near, self.access.tls, self.access.server_name or host, self._timeout_s)
        if via is not None:
            pair = f"{via.username}:{via.password or ''}".encode() if via.username else b""
            extra = {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"} if pair else {}
            made.set_tunnel(host, port, extra)
        return made

    def _authorization(self) -> dict[str, str]:
        if not self.access.token_file:
            return self.access.headers
        try:
            token = Path(self.access.token_file).read_text().strip()
        except OSError as error:
            raise InvalidInputError(f"the token {self.access.token_file} cannot be read: {error.strerror}") from error
        return {**self.access.headers, "Authorization": f"Bearer {token}"}

    def _unreachable(self, error: BaseException) -> ClusterUnreachableError:
        words = str(error) or type(error).__name__
        remedy = "is the cluster up, and does `kubectl version` work?"
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "its certificate is not the one that the kubeconfig expects; get a new kubeconfig"
        return ClusterUnreachableError(
            f"the cluster at {self.access.server} cannot be reached: {words}; {remedy} (from {self.access.source})"
        )


class _Https(http.client.HTTPSConnection):
    """HTTPS whose certificate is checked against a name of its own, also through a proxy."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        """Connect and shake hands."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


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
    def connect(cls, namespace: str | None = None, *, context: str | None = None) -> Experiments:
        """Find the cluster that this process is configured for.

        Raises:
            InvalidInputError: none is.
        """
        return cls(KubeClient(find_access(context=context)), namespace)

    def __enter__(self) -> Experiments:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, name: str) -> Json:
        """Return a TuneExperiment.

        Raises:
            NotThereError: there is none; the message has the nearest names.
            InvalidInputError: trialpod is not installed there, or the user may not look.
            ClusterUnreachableError: the cluster cannot be reached.
        """
        found = self.find(name)
        if found is None:
            raise NotThereError(self._absent(name))
        return found

    def find(self, name: str) -> Json | None:
        """Return a TuneExperiment, None when there is none; raises as `get` otherwise."""
        try:
            return self.client.request("GET", self._path(names.EXPERIMENTS, name))
        except ApiError as error:
            if error.status == 404 and self._installed(error):
                return None
            raise self._explained(error, "get", names.EXPERIMENTS) from error

    def names(self) -> list[str]:
        """Return the names of the namespace's experiments."""
        return [
            str(item["metadata"]["name"]) for item in self._list(self._path(names.EXPERIMENTS), names.EXPERIMENTS)
        ]

    def trials(self, name: str) -> list[Json]:
        """Return the TuneTrials of an experiment in the order of their creation."""
        selector = f"{names.EXPERIMENT_LABEL}={name}"
        found = self._list(self._path(names.TRIALS), names.TRIALS, {"labelSelector": selector})
        return sorted(found, key=lambda item: int((item.get("spec") or {}).get("index", 0)))

    def events(self, name: str, uid: str = "") -> list[Json]:
        """Return the events about an experiment, the latest last; none when they may not be seen."""
        chosen = f"involvedObject.kind={names.EXPERIMENT_KIND},involvedObject.name={name}"
        path = f"/api/v1/namespaces/{quote(self.namespace)}/events"
        try:
            found = self._list(path, "events", {"fieldSelector": chosen})
        except InvalidInputError:
            return []  # They add to what the status says; without the right to see them the rest is still told.
        own = [event for event in found if not uid or (event.get("involvedObject") or {}).get("uid", uid) == uid]
        return sorted(own, key=event_time)

    def create(self, manifest: Json) -> Json:
        """Create a TuneExperiment; raises as `get`, and an `ApiError` with status 409 when the name is taken."""
        try:
            return self.client.request(
                "POST", self._path(names.EXPERIMENTS), manifest, query={"fieldManager": "trialpod-client"}
            )
        except ApiError as error:
            if error.status == 409:
                raise
            raise self._explained(error, "create", names.EXPERIMENTS) from error

    def change(self, name: str, spec: Json) -> Json:
        """Change fields of an experiment's spec; None removes a field."""
        path = self._path(names.EXPERIMENTS, name)
        try:
            return self.client.request("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)
        except ApiError as error:
            raise self._explained(error, "patch", names.EXPERIMENTS) from error

    def _list(self, path: str, what: str, query: Mapping[str, str] | None = None) -> list[Json]:
        items: list[Json] = []
        rest = ""
        while True:
            page = {**(query or {}), "limit": str(_PAGE), **({"continue": rest} if rest else {})}
            try:
                found = self.client.request("GET", path, query=page)
            except ApiError as error:
                if error.status == 410 and rest:
                    items, rest = [], ""  # the list has become too old between two pages
                    continue
                raise self._explained(error, "list", what) from error
            items += found.get("items") or []
            rest = str((found.get("metadata") or {}).get("continue") or "")
            if not rest:
                return items

    def _path(self, resource: str, name: str = "") -> str:
        path = f"/apis/{names.API_VERSION}/namespaces/{quote(self.namespace)}/{resource}"
        return f"{path}/{quote(name)}" if name else path

    def _installed(self, error: ApiError) -> bool:
        # Of an object that is missing the server says its name; of a kind that it does not know, nothing.
        return "not found" in str(error) and "the server could not find" not in str(error)

    def _absent(self, name: str) -> str:
        known = self.names()
        guess = nearest(name, known)
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        hint = f"; did you mean {guess}?" if guess else ""
        there = f" (there are: {shown})" if known else "; there is none at all: is it in another namespace (-n)?"
        return f"there is no TuneExperiment {name} in the namespace {self.namespace}{hint}{there}"

    def _explained(self, error: ApiError, verb: str, what: str) -> TrialpodError:
        if error.status == 404:
            return InvalidInputError(
                f"trialpod is not installed in the cluster at {self.client.access.server}: it does not know "
                f"{names.EXPERIMENT_KIND}s; who runs the cluster installs it: {CHART}"
            )
        if error.status == 403:
            group = "" if what == "events" else f".{names.GROUP}"
            return InvalidInputError(
                f"you may not {verb} {what} in the namespace {self.namespace}: {error}; "
                f"`kubectl auth can-i {verb} {what}{group} -n {self.namespace}` tests it, the role edit has the right"
            )
        if error.status == 401:
            return InvalidInputError(
                f"the cluster at {self.client.access.server} does not accept who you are (from "
                f"{self.client.access.source}); log in again"
            )
        if error.status in (400, 422):
            return InvalidInputError(f"the cluster refuses the experiment: {error}")
        return error


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
