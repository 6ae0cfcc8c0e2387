"""An API server in memory: objects, versions, finalizers, graceful deletion, garbage collection, watches.

`FakeKube` is the operator's own `Kube` with its connection replaced, so that what it makes of answers is tested too.
Each operator has one, with its own latency and faults. Times are those of the running event loop.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import itertools
import marshal
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.aio.client.models.v1_pod_spec import V1PodSpec
from virtual_time import START

from trialpod_operator.api.api_errors import ApiError, api_error
from trialpod_operator.cluster.kube import JSON, METADATA, Kube, Serves

Object = dict[str, Any]
Fault = Callable[[str, str, Any], ApiError | None]
"""Given method, path and body, returns the error to answer with instead of doing it."""

_PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
WATCHED = {"tuneexperiments": "experiment", "tunetrials": "trial", "pods": "pod"}
COLLECTS_AFTER_S = 0.5
_LISTED: Object = {}
"""In the place of an object: a list ends here."""

PAGE = 3
"""Objects on one page of a list, however many were asked for: so there are always several."""


def error(method: str, path: str, status: int, reason: str, message: str = "") -> ApiError:
    """Return what the server answers instead of doing it."""
    return api_error(method, path, status, {"reason": reason, "message": message or reason})


def copied(value: Any) -> Any:
    """Return a deep copy of what JSON can say, several times as fast as `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(value))


def stamp(now: float) -> str:
    """Return a time as Kubernetes writes it."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeApi:
    """The server. Attributes may be read, and objects changed with `edit`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Object]] = {}  # (namespace, plural) -> name -> object
        self.watches: list[Watch] = []
        self.listeners: list[Callable[[str, Object], None]] = []
        """Called with ADDED, MODIFIED or DELETED and each object of a watched kind, at once."""
        self._pages: dict[str, list[Object]] = {}  # by the token that continues a list
        self._tokens = itertools.count(1)
        self.logs: dict[str, str] = {}  # pod's uid, or uid/container -> what it printed
        self.counts: Counter[str] = Counter()  # requests by "METHOD plural"
        self.on_pod: Callable[[str, Object], None] = lambda kind, pod: None
        self.on_other: Callable[[str, Object], None] = lambda kind, item: None
        """Called likewise with each object of a kind that is not watched."""
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # -- what tests use --

    def now(self) -> float:
        return START + asyncio.get_running_loop().time()

    def all(self, plural: str, namespace: str = "team") -> list[Object]:
        """All objects of a kind, oldest first."""
        return list(self.objects.get((namespace, plural), {}).values())

    def get(self, plural: str, name: str, namespace: str = "team") -> Object | None:
        return self.objects.get((namespace, plural), {}).get(name)

    def edit(self, item: Object, change: Callable[[Object], None]) -> Object:
        """Change an object as its other owners do (kubelet, scheduler, users)."""
        fresh = copied(item)
        change(fresh)
        return self._store(fresh["_plural"], item, fresh)

    def remove(self, item: Object) -> None:
        """Take an object away, whatever holds it."""
        metadata = item["metadata"]
        objects = self.objects[metadata["namespace"], item["_plural"]]
        if objects.get(metadata["name"], {}).get("metadata", {}).get("uid") != metadata["uid"]:
            return
        del objects[metadata["name"]]
        self._tell("DELETED", item)
        asyncio.get_running_loop().call_later(COLLECTS_AFTER_S, self.collect_garbage)

    def collect_garbage(self) -> None:
        """Delete what belongs to nobody any more."""
        present = {item["metadata"]["uid"] for objects in self.objects.values() for item in objects.values()}
        for objects in list(self.objects.values()):
            for item in list(objects.values()):
                owners = item["metadata"].get("ownerReferences") or []
                if owners and not any(owner["uid"] in present for owner in owners):
                    self.delete(item)

    def delete(self, item: Object, grace_s: float | None = None) -> None:
        """Ask for the end of an object, as DELETE does."""
        metadata = item["metadata"]
        pod = item["_plural"] == "pods"
        if metadata.get("deletionTimestamp"):
            return
        begun = pod and (item.get("status") or {}).get("phase") == "Running"
        if not metadata.get("finalizers") and not begun:
            self.remove(item)
            return
        grace = 0.0 if not pod else float(item["spec"].get("terminationGracePeriodSeconds", 30))
        grace = grace if grace_s is None else grace_s

        def mark(each: Object) -> None:
            each["metadata"]["deletionTimestamp"] = stamp(self.now() + grace)
            if pod:
                each["metadata"]["deletionGracePeriodSeconds"] = int(grace)

        self.edit(item, mark)

    # -- requests --

    def handle(self, method: str, path: str, query: Mapping[str, str], body: Any, *, text: bool) -> Any:
        """Answer one request."""
        match = _PATH.fullmatch(path)
        assert match is not None, path
        namespace, plural, name, part = match.group("namespace", "plural", "name", "part")
        self.counts[f"{method} {plural}"] += 1
        objects = self.objects.setdefault((namespace, plural), {})
        if name is None:
            return self._collection(method, path, plural, namespace, query, body)
        item = objects.get(name)
        if item is None:
            raise error(method, path, 404, "NotFound", f'{plural} "{name}" not found')
        if method == "GET" and part == "log":
            uid, container = item["metadata"]["uid"], query.get("container", "")
            return self.logs.get(f"{uid}/{container}", self.logs.get(uid, ""))
        if method == "GET":
            return _shown(item)
        if method == "DELETE":
            for field, wanted in ((body or {}).get("preconditions") or {}).items():
                if wanted != item["metadata"][field]:
                    raise error(method, path, 409, "Conflict", f"the {field} in the precondition is another one")
            self.delete(item, (body or {}).get("gracePeriodSeconds"))
            return {}
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != item["metadata"]["resourceVersion"]:
            raise error(method, path, 409, "Conflict", "the object has been modified")
        if method == "PUT":
            fresh = {**copied(body), "_plural": plural}
            fresh["metadata"] = {**item["metadata"], **fresh["metadata"]}
            return _shown(self._store(plural, item, fresh))
        assert method == "PATCH", method
        if part == "status":
            fresh = {**item, "status": _merged(item.get("status") or {}, body.get("status"))}
        else:
            fresh = _merged(item, {key: value for key, value in body.items() if key != "status"})
        return _shown(self._store(plural, item, copied(fresh)))

    def _collection(
        self, method: str, path: str, plural: str, namespace: str, query: Mapping[str, str], body: Any
    ) -> Any:
        objects = self.objects[namespace, plural]
        if method == "POST":
            if query.get("fieldValidation") == "Strict" and plural == "pods":
                for field in body["spec"].keys() - V1PodSpec.attribute_map.values():
                    message = f'strict decoding error: unknown field "spec.{field}"'
                    raise error(method, path, 400, "BadRequest", f'Pod in version "v1" cannot be handled: {message}')
            return _shown(self._create(method, path, plural, namespace, body))
        found = [item for item in objects.values() if _selected(item, query.get("labelSelector", ""))]
        about = re.match(r"involvedObject\.uid=([^,]*)", query.get("fieldSelector", ""))
        if about is not None:
            found = [item for item in found if (item.get("involvedObject") or {}).get("uid") == about[1]]
        if method == "DELETE":
            for item in found:
                self.delete(item)
            return {}
        assert method == "GET", method
        # All pages are of one moment, that of the first: etcd keeps it for them.
        shown = self._pages.pop(query["continue"]) if query.get("continue") else [_shown(item) for item in found]
        token = {}
        if len(shown) > PAGE:
            token["continue"] = str(next(self._tokens))
            self._pages[token["continue"]] = shown[PAGE:]
        return {"items": shown[:PAGE], "metadata": token}

    def _create(self, method: str, path: str, plural: str, namespace: str, body: Any) -> Object:
        item: Object = copied(dict(body))
        metadata = item.setdefault("metadata", {})
        uid = f"uid-{next(self._uids)}"
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{uid}")
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", metadata["name"]), metadata["name"]
        objects = self.objects.setdefault((namespace, plural), {})
        if metadata["name"] in objects:
            raise error(method, path, 409, "AlreadyExists", f"{metadata['name']} already exists")
        metadata |= {"namespace": namespace, "uid": uid, "creationTimestamp": stamp(self.now()), "generation": 1}
        metadata["resourceVersion"] = str(next(self._versions))
        item["_plural"] = plural
        item.pop("status", None)
        if plural == "pods":
            item["status"] = {"phase": "Pending"}
        objects[metadata["name"]] = item
        if metadata.get("ownerReferences"):
            asyncio.get_running_loop().call_later(COLLECTS_AFTER_S, self.collect_garbage)
        self._tell("ADDED", item)
        return item

    def _store(self, plural: str, before: Object, fresh: Object) -> Object:
        metadata = fresh["metadata"]
        current = self.objects[metadata["namespace"], plural].get(metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return fresh  # it went away meanwhile
        if fresh == before:
            return before
        if fresh.get("spec") != before.get("spec") and plural in ("tuneexperiments", "tunetrials"):
            metadata["generation"] += 1
        metadata["resourceVersion"] = str(next(self._versions))
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and plural != "pods":
            self.remove({**fresh})
            return fresh
        self.objects[metadata["namespace"], plural][metadata["name"]] = fresh
        self._tell("MODIFIED", fresh)
        return fresh

    def _tell(self, kind: str, item: Object) -> None:
        if item["_plural"] == "pods":
            self.on_pod(kind, item)
        if item["_plural"] not in WATCHED:
            self.on_other(kind, item)
        if item["_plural"] in WATCHED:
            for watch in list(self.watches):
                watch.tell(kind, item["_plural"], _shown(item))
            for listener in self.listeners:
                listener(kind, item)


class Watch:
    """One operator's watches: each kind in its own order, each kind with its own delay.

    Args:
        api: the server.
        take: called with "experiment", "trial" or "pod", the object, and whether it was deleted.
        random: for the delays.
        delay_s: maximum, in seconds.
    """

    def __init__(
        self, api: FakeApi, take: Callable[[str, Object, bool], None], random: random.Random, delay_s: float
    ) -> None:
        self._take, self._random, self._delay_s = take, random, delay_s
        self._last: dict[str, float] = {}
        self._api = api
        self.lose: Callable[[str, Object], bool] = lambda kind, item: False
        """Whether the news of an object's deletion gets lost."""
        self.closed = False
        self.listed = {plural: asyncio.Event() for plural in WATCHED}
        """By kind: set when everything was shown that was there at the start."""
        api.watches.append(self)
        for plural in WATCHED:
            self.list_again(plural)
            self._at(plural, 0.0, _LISTED, deleted=False)

    def list_again(self, plural: str) -> None:
        """Show everything that is there, as at the start of a watch."""
        for (_, kind), objects in self._api.objects.items():
            if kind == plural:
                for item in objects.values():
                    self.tell("ADDED", plural, _shown(item))

    def tell(self, kind: str, plural: str, item: Object) -> None:
        if kind == "DELETED" and self.lose(plural, item):
            return
        self._at(plural, self._random.uniform(0.0, self._delay_s), item, deleted=kind == "DELETED")

    def _at(self, plural: str, delay_s: float, item: Object, *, deleted: bool) -> None:
        loop = asyncio.get_running_loop()
        at = max(self._last.get(plural, 0.0), loop.time() + delay_s)
        self._last[plural] = at + 1e-6
        loop.call_at(at + 1e-6, self._deliver, plural, item, deleted)

    def _deliver(self, plural: str, item: Object, deleted: bool) -> None:
        if self.closed:
            return
        if item is _LISTED:
            self.listed[plural].set()
        else:
            self._take(WATCHED[plural], item, deleted)

    def close(self) -> None:
        self.closed = True
        if self in self._api.watches:
            self._api.watches.remove(self)


class FakeKube(Kube):
    """One process's access to the server.

    Args:
        api: the server.
        random: for latency.
        latency_s: maximum time of a request on its way, and of its answer.
    """

    def __init__(self, api: FakeApi, random: random.Random | None = None, latency_s: float = 0.02) -> None:
        self._api = api
        self._random = random or _seeded()
        self._latency_s = latency_s
        self.requests = 0
        self.lease_valid: Callable[[], bool] = lambda: True
        self.faults: list[Fault] = []
        self.lost_answers: Callable[[], bool] = lambda: False

    async def close(self) -> None:
        pass

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
        self.requests += 1
        await asyncio.sleep(self._random.uniform(0.0, self._latency_s))
        self._check_allowed(method, path, serves)
        for fault in self.faults:
            refusal = fault(method, path, body)
            if refusal is not None:
                raise refusal
        answer = self._api.handle(method, path, query or {}, body, text=text)
        await asyncio.sleep(self._random.uniform(0.0, self._latency_s))
        if self.lost_answers():
            raise error(method, path, 0, "Unreachable", "the connection broke")
        return in_form(answer, accept)


def in_form(answer: Any, accept: str) -> Any:
    """Return an answer in the form that was asked for."""
    if accept != METADATA:
        return answer
    return {**answer, "items": [{"metadata": item["metadata"]} for item in answer["items"]]}


def quota(method: str, path: str, body: Any) -> ApiError | None:
    """A fault: no more pods fit into the namespace's quota."""
    if method == "POST" and path.endswith("/pods"):
        message = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
        return error(method, path, 403, "Forbidden", message)
    return None


def outage(method: str, path: str, body: Any) -> ApiError | None:
    """A fault: the server cannot be reached."""
    return error(method, path, 0, "Unreachable", "connection refused")


def flaky(random: random.Random, share: float) -> Fault:
    """Return a fault that answers some requests with 500."""

    def fault(method: str, path: str, body: Any) -> ApiError | None:
        return (
            error(method, path, 500, "InternalError", "etcdserver: leader changed")
            if random.random() < share
            else None
        )

    return fault


def _seeded() -> random.Random:
    return random.Random(1)


def _shown(item: Object) -> Object:
    return copied({key: value for key, value in item.items() if key != "_plural"})


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _selected(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(key) in values for key, values in _parts(selector))


@functools.lru_cache
def _parts(selector: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the labels that a selector is about, each with its allowed values."""
    found = []
    for part in re.split(r",(?![^(]*\))", selector):
        if among := re.fullmatch(r"(\S+) in \((.*)\)", part):
            found.append((among[1], tuple(among[2].split(","))))
        elif part:
            key, _, value = part.partition("=")
            found.append((key, (value,)))
    return tuple(found)
