"""Access to the Kubernetes API: the few calls that the operator makes, on plain dicts, with typed errors.

The official client (`kubernetes.aio`) configures, authenticates and sends, by the public methods of its `ApiClient`.
Its model classes are not used: users' objects have fields that a typed model of another version would drop. Nor are
`param_serialize` and `CustomObjectsApi`: they copy each body to find models in it, and take 240 to 290 microseconds
of CPU per request against 180 to 220 for `call_api` alone.

Invariants, of every request that changes something, at the moment in which its bytes are written: this process has
its Lease (`Kube.lease_valid`); and it serves the experiment for which the request is (`Kube.on_behalf_of`). Both
change without notice to the pass in progress: the process may have been stopped, or have waited for an answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar
from urllib.parse import quote, urlencode
from urllib.request import getproxies

import msgspec
from aiohttp import ClientError, TraceConfig

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    NotSentError,
    NotServedError,
    UnreachableError,
    api_error,
)
from trialpod_operator.cluster.metrics.instruments import count_request
from trialpod_operator.cluster.names import GROUP, MANAGER, VERSION
from trialpod_operator.cluster.work_queue import FairSemaphore

if TYPE_CHECKING:
    from aiohttp import TraceRequestChunkSentParams
    from kubernetes.aio.client import ApiClient
    from kubernetes.aio.client.rest import RESTResponse

T = TypeVar("T")
Page = tuple[list[dict[str, Any]], str]
Serves = Callable[[], bool]
"""Returns whether this process serves the experiment that a request is for."""

TIMEOUT_S = 30.0
PARALLEL = 32
"""Requests of this process that may be in progress at once, watches not counted."""

DEDICATED_LIMITS = {"/apis/authentication.k8s.io/": 8, "/apis/coordination.k8s.io/": 4}
"""And of those with these paths: a burst of tokens keeps nothing else waiting, and the Lease waits for nothing."""

MAX_LOG_REQUESTS = 16
"""And of those for what pods printed: a node that does not answer keeps nothing else waiting."""

LOG_TIMEOUT_S = 15.0
"""For one of them: a few MiB from a node that is well take less."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""The form of a list in which each object is its metadata only."""


LEASE_EXEMPT_PATHS = ("/apis/coordination.k8s.io/", "/apis/authentication.k8s.io/")
"""The Lease itself, and questions that change nothing."""

_SERVES: contextvars.ContextVar[Serves | None] = contextvars.ContextVar("serves", default=None)
"""Of the request that is in progress here: aiohttp tells its traces no more than method and address."""


class Version(NamedTuple):
    """An object, and which state of it."""

    name: str
    uid: str
    version: str


class _VersionMetadata(TypedDict):
    name: str
    uid: str
    resourceVersion: str


class _Versioned(TypedDict):
    metadata: _VersionMetadata


class _Versions(TypedDict, total=False):
    metadata: dict[str, Any]
    items: list[_Versioned] | None


class ApiServer(ABC):
    """Requests to the API server, and the few kinds of them that the operator makes."""

    @abstractmethod
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        text: bool = False,
        accept: str = JSON,
        schema: Any = Any,
    ) -> Any:
        """Make one request and return the decoded answer.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: below the server's root, such as ``/api/v1/pods``.
            query: parameters.
            body: sent as JSON.
            content_type: of the body.
            text: return the answer as text instead of decoding it.
            accept: the form of the answer.
            schema: what to decode of it, as a `TypedDict`: fields that it does not name are left out.

        Raises:
            ApiError: the server refused it or could not be reached.
            NotServedError: it was not sent, because the experiment is not this process's any more.
        """

    @abstractmethod
    def may_change(self) -> bool:
        """Return whether a change would be sent now. May be called from any thread."""

    # -- objects, by the path of their collection --

    async def get(self, collection: str, name: str) -> dict[str, Any] | None:
        """Return one object, None when there is none."""
        try:
            found: dict[str, Any] = await self.request("GET", f"{collection}/{quote(name)}")
        except NotFoundError:
            return None
        return found

    async def list(self, collection: str, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a collection that have the labels of `selector`, page by page."""
        items: list[dict[str, Any]] = []
        async for page, _ in self.pages(collection, selector):
            items += page
        return items

    async def list_versions(self, collection: str, selector: str = "") -> Sequence[Version]:
        """Return which objects of a collection there are, each in which state. A pod is a fifth of its text so."""
        found: list[Version] = []
        async for page, _ in self.pages(collection, selector, accept=METADATA, schema=_Versions):
            for item in page:
                metadata = item["metadata"]
                found.append(Version(metadata["name"], metadata["uid"], metadata["resourceVersion"]))
        return found

    async def pages(
        self, collection: str, selector: str = "", *, accept: str = JSON, schema: Any = Any
    ) -> AsyncIterator[Page]:
        """Yield the objects of a collection page by page, each page with the version of the whole list.

        Args:
            collection: its path.
            selector: the labels that the objects have.
            accept: the form of the lists.
            schema: what to decode of a list.
        """
        query = {"limit": "500", **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.request("GET", collection, query=query, accept=accept, schema=schema)
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], str(metadata.get("resourceVersion") or "")
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def create(self, collection: str, body: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        """Create an object and return it; 409 when its name is taken, 400 when `strict` and it has unknown fields."""
        query = {"fieldManager": MANAGER, **({"fieldValidation": "Strict"} if strict else {})}
        created: dict[str, Any] = await self.request("POST", collection, query=query, body=dict(body))
        return created

    async def patch(
        self, collection: str, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any] | None:
        """Merge `body` into an object (or a part of it, such as its status); None when the object is gone."""
        path = f"{collection}/{quote(name)}" + (f"/{subresource}" if subresource else "")
        try:
            patched: dict[str, Any] = await self.request(
                "PATCH", path, query={"fieldManager": MANAGER}, body=dict(body), content_type=MERGE_PATCH
            )
        except NotFoundError:
            return None
        return patched

    async def delete(self, collection: str, name: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        """Delete an object, only the one with that `uid` if given; return False when it was gone already."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.request("DELETE", f"{collection}/{quote(name)}", body=body)
        except NotFoundError:
            return False
        except ConflictError:
            if not uid:
                raise
            return False  # another object has its name now
        return True

    async def delete_all(self, collection: str, selector: str) -> None:
        """Delete all objects that have the labels of `selector`, in one request."""
        await self.request(
            "DELETE", collection, query={"labelSelector": selector}, body={"propagationPolicy": "Background"}
        )

    async def pod_log(
        self, namespace: str, name: str, container: str, limit_bytes: int, since: str = "", last_lines: int = 0
    ) -> str:
        """Return a container's output, oldest first, at most about `limit_bytes` of it.

        Args:
            namespace: of the pod.
            name: of the pod.
            container: of the pod.
            limit_bytes: of what is asked for, the beginning.
            since: only from this time on; "" = all.
            last_lines: only so many; 0 = all.
        """
        query = {"container": container, "limitBytes": str(limit_bytes)}
        if since:
            query["sinceTime"] = since
        if last_lines:
            query["tailLines"] = str(last_lines)
        found: str = await self.request("GET", f"{pods(namespace)}/{quote(name)}/log", query=query, text=True)
        return found

    async def review_token(self, token: str, audience: str) -> dict[str, Any]:
        """Return the status of a TokenReview."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)
        return dict(answer.get("status") or {})

    async def token_keys(self) -> tuple[str, dict[str, Any]]:
        """Return the issuer of service account tokens, and the set of its public keys."""
        about, keys = [
            # As text, because the server does not call the second one JSON.
            msgspec.json.decode(await self.request("GET", path, text=True))
            for path in ("/.well-known/openid-configuration", "/openid/v1/jwks")
        ]
        return str(about["issuer"]), keys


class Kube(ApiServer):
    """Calls the API server. Owned by the operator's event loop.

    Args:
        client: configured with the server's address and credentials.
        timeout_s: for one request.
        client_errors: what the client raises, in addition to aiohttp's errors, when it cannot authenticate or send.
    """

    def __init__(
        self,
        client: ApiClient,
        timeout_s: float = TIMEOUT_S,
        client_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._client = client
        self._no_answer: tuple[type[Exception], ...] = (OSError, TimeoutError, ClientError, *client_errors)
        self._timeout_s = timeout_s
        self._semaphore = FairSemaphore(PARALLEL)
        self._dedicated = {start: FairSemaphore(limit) for start, limit in DEDICATED_LIMITS.items()}
        self._logs = FairSemaphore(MAX_LOG_REQUESTS)
        self.requests = 0
        self.lease_valid: Callable[[], bool] = lambda: True
        """Whether this process may still change anything; asked before each change outside `LEASE_EXEMPT_PATHS`, and
        again when its bytes are about to be written: the process may have been stopped while it connected."""

    @classmethod
    async def connect(cls) -> Kube:
        """Connect with the pod's service account, or with the user's kubeconfig outside of a cluster.

        Raises:
            TrialpodError: there is neither.
        """
        from kubernetes.aio import config
        from kubernetes.aio.client import ApiClient, Configuration
        from kubernetes.aio.client.exceptions import OpenApiException

        configuration = Configuration()
        try:
            if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
                config.load_incluster_config(configuration)
            else:
                await config.load_kube_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise TrialpodError(
                f"no way to reach a Kubernetes API server: {error}; run in a pod with a service account, "
                "or set KUBECONFIG"
            ) from error
        configuration.connection_pool_maxsize = 0  # none: semaphores limit requests, and each namespace has watches
        configuration.retries = 0
        # With trust_env aiohttp reads .netrc before each request, which only a proxy's password could need.
        configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        client = ApiClient(configuration)
        client.user_agent = "trialpod-operator"
        kube = cls(client, client_errors=(OpenApiException, config.ConfigException))
        check = TraceConfig()
        check.on_request_chunk_sent.append(kube._check_allowed_again)
        configuration.trace_configs = [check]
        return kube

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        text: bool = False,
        accept: str = JSON,
        schema: Any = Any,
        serves: Serves | None = None,
    ) -> Any:
        """Make one request, as `ApiServer.request` says; for an experiment's, `serves` is asked before it is sent."""
        headers = {"Accept": "*/*" if text else accept, "Content-Type": content_type}
        async with self._semaphore_for(path):
            self._check_allowed(method, path, serves)
            self.requests += 1
            _SERVES.set(serves)
            try:
                limit_s = min(LOG_TIMEOUT_S, self._timeout_s) if path.endswith("/log") else self._timeout_s
                response = await self._send(method, path, query, headers, body, limit_s)
                data = await response.read()
            except self._no_answer as error:
                if isinstance(error.__cause__, NotSentError | NotServedError):
                    raise error.__cause__ from None
                raise _unreachable(method, path, error) from error
        status = int(response.status)
        count_request(method, path, status)
        if status >= 400:
            raise api_error(method, path, status, _status_of(data), _seconds(response.headers.get("Retry-After")))
        if text:
            return data.decode("utf-8", "replace")
        return msgspec.json.decode(data, type=schema) if data else {}

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        body: Any,
        timeout_s: float,
    ) -> RESTResponse:
        headers["User-Agent"] = self._client.user_agent
        parameters: list[tuple[str, str]] = list((query or {}).items())
        await self._client.update_params_for_auth(headers, parameters, ["BearerToken"], path, method, body, None)
        url = f"{self._client.configuration.host}{path}"
        if parameters:
            url += f"?{urlencode(parameters)}"
        return await self._client.call_api(method, url, header_params=headers, body=body, _request_timeout=timeout_s)

    async def watch(self, collection: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the lines of a watch on a collection until the server ends it.

        Args:
            collection: its path.
            query: has the version after which to begin, as ``resourceVersion``.

        Raises:
            ApiError: the server refused it, cannot be reached, or closed the connection.
        """
        query = {**query, "watch": "true", "allowWatchBookmarks": "true"}
        limit_s = float(query["timeoutSeconds"]) + self._timeout_s
        try:
            response = await self._send("GET", collection, query, {"Accept": "application/json"}, None, limit_s)
            count_request("GET", collection, int(response.status))
            if response.status >= 400:
                data = await response.read()
                retry_after_s = _seconds(response.headers.get("Retry-After"))
                raise api_error("GET", collection, int(response.status), _status_of(data), retry_after_s)
            answer = response.response
            try:
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line:
                            yield line
            finally:
                answer.close()
        except self._no_answer as error:
            raise _unreachable("GET", collection, error) from error

    def on_behalf_of(self, serves: Serves) -> ApiServer:
        """Return the API server for what is done for one experiment.

        Args:
            serves: returns whether this process serves it; nothing is changed for it otherwise.
        """
        return _OnBehalf(self, serves)

    def may_change(self) -> bool:
        """Return whether this process has its Lease."""
        return self.lease_valid()

    def _check_allowed(self, method: str, path: str, serves: Serves | None) -> None:
        if method == "GET" or path.startswith(LEASE_EXEMPT_PATHS):
            return
        if serves is not None and not serves():
            raise NotServedError(method, path)
        if not self.lease_valid():
            raise NotSentError(method, path, 0, {"message": "not sent: this operator's lease has expired"})

    async def _check_allowed_again(
        self, _session: object, _context: object, chunk: TraceRequestChunkSentParams
    ) -> None:
        # aiohttp calls this before it writes the body, and the headers with it. The body of a change is never empty.
        self._check_allowed(chunk.method, chunk.url.path, _SERVES.get())

    def _semaphore_for(self, path: str) -> FairSemaphore:
        if path.endswith("/log"):
            return self._logs
        return next((each for start, each in self._dedicated.items() if path.startswith(start)), self._semaphore)


class _OnBehalf(ApiServer):
    """The API server for one experiment; every request is the process's own, sent under one more condition."""

    def __init__(self, kube: Kube, serves: Serves) -> None:
        self._kube = kube
        self._serves = serves

    async def request(self, method: str, path: str, **options: Any) -> Any:
        return await self._kube.request(method, path, serves=self._serves, **options)

    def may_change(self) -> bool:
        return self._serves() and self._kube.may_change()


def experiments(namespace: str) -> str:
    """Return the path of a namespace's TuneExperiments."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quote(namespace)}/tuneexperiments"


def trials(namespace: str) -> str:
    """Return the path of a namespace's TuneTrials, of all namespaces' for ""."""
    return f"/apis/{GROUP}/{VERSION}{_within(namespace)}/tunetrials"


def pods(namespace: str) -> str:
    """Return the path of a namespace's pods, of all namespaces' for ""."""
    return f"/api/v1{_within(namespace)}/pods"


def _within(namespace: str) -> str:
    return f"/namespaces/{quote(namespace)}" if namespace else ""


def secrets(namespace: str) -> str:
    """Return the path of a namespace's Secrets."""
    return f"/api/v1/namespaces/{quote(namespace)}/secrets"


def config_maps(namespace: str) -> str:
    """Return the path of a namespace's ConfigMaps."""
    return f"/api/v1/namespaces/{quote(namespace)}/configmaps"


def events(namespace: str) -> str:
    """Return the path of a namespace's events."""
    return f"/api/v1/namespaces/{quote(namespace)}/events"


def objects(namespace: str, api_version: str, resource: str) -> str:
    """Return the path of a namespace's objects of any kind, by its plural."""
    root = "/apis" if "/" in api_version else "/api"
    return f"{root}/{api_version}/namespaces/{quote(namespace)}/{quote(resource)}"


def workloads(namespace: str, version: str) -> str:
    """Return the path of a namespace's Workloads of Kueue's."""
    return f"/apis/kueue.x-k8s.io/{version}/namespaces/{quote(namespace)}/workloads"


def leases(namespace: str) -> str:
    """Return the path of a namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"


def _unreachable(method: str, path: str, error: BaseException) -> UnreachableError:
    count_request(method, path, 0)
    message = f"the API server cannot be reached: {error or type(error).__name__}"
    return UnreachableError(method, path, 0, {"reason": "Unreachable", "message": message})


def _status_of(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"message": data[:500].decode("utf-8", "replace")}


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0


async def refusal(request: Awaitable[object]) -> ApiError | None:
    """Make a request; return why the server refuses it, as an admission rule may for one object among many.

    Raises:
        UnreachableError: the server does not answer.
    """
    try:
        await request
    except UnreachableError:
        raise
    except ApiError as error:
        return error
    return None


async def gather_all(*requests: Awaitable[T]) -> list[T]:
    """Run requests concurrently, wait until all have ended, and return their results in this order.

    `asyncio.gather` would leave the others running when one fails, beside the next reconcile; a `TaskGroup` would
    cancel them, and whether an object was created would not be known.

    Raises:
        Exception: the first failure in this order, once all have ended.
    """
    results = await asyncio.gather(*requests, return_exceptions=True)
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
