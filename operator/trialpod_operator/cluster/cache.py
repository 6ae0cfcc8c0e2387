"""What the watches have shown: the latest state of every TuneExperiment, TuneTrial and pod of ours.

It is a cache with the API server as the truth. It may lag behind, and it may miss that an object was deleted while a
watch was broken; so code that acts on the absence of an object asks the server first. Pods that a controller made for
an object of another kind are kept apart (`parts`); what is shown as the attempt's pod is composed of both. Only what
the operator reads of a pod is kept; a TuneTrial whose trial has ended, and a pod that is gone, are kept as packed
JSON: there may be tens of thousands, and hardly any is read again. Owned by the event loop.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, overload

import msgspec

from trialpod_operator.cluster.names import (
    DECIDER_ROLE,
    EXPERIMENT_LABEL,
    OBJECT_LABEL,
    ROLE_LABEL,
    TRIAL_ID_LABEL,
    TRIAL_KIND,
)
from trialpod_operator.engine.trial import ERROR, TERMINATED

MAX_DELETED = 4_000
"""Deleted objects whose last state is remembered: more than one namespace's pods, or what a busy minute removes."""

Object = dict[str, Any]


class _Packed:
    """An object kept as compressed JSON; only its uid and version can be read without unpacking."""

    __slots__ = ("data", "uid", "version")

    def __init__(self, item: Object) -> None:
        self.uid, self.version = _identity(item)
        self.data = zlib.compress(msgspec.json.encode(item), 1)

    def unpack(self) -> Object:
        item: Object = msgspec.json.decode(zlib.decompress(self.data))
        return item


class ObjectCache:
    """The objects, by namespace and name."""

    def __init__(self) -> None:
        self.experiments: dict[str, Object] = {}  # by "namespace/name"
        self._trials: dict[str, dict[str, Object | _Packed]] = {}  # by the experiment's key, then by name
        self._stops: dict[str, dict[str, str]] = {}  # by the same: the ids of trials that are to stop
        self._pods: dict[str, dict[str, Object | _Packed]] = {}
        self._parts: dict[str, dict[str, Object | _Packed]] = {}  # pods of other kinds' objects, likewise
        self._of_object: dict[str, dict[str, set[str]]] = {}  # their names by the object's
        self._composers: dict[str, Callable[[str], None]] = {}
        self._pods_by_trial: dict[str, dict[str, set[str]]] = {}  # names; by the key, then by the trial's id
        self._index_of_pods: dict[tuple[str, str], tuple[str, str]] = {}
        """The keys and trials' ids that pods are found by; by namespace and name."""
        self._deciders: dict[str, dict[str, Object | _Packed]] = {}  # pods too, of no trial
        self._deleted: OrderedDict[str, _Packed] = OrderedDict()  # by the uid, of whatever was deleted

    def update_experiment(self, item: Mapping[str, Any], *, deleted: bool) -> str:
        """Store a TuneExperiment and return its key."""
        key = key_of(item)
        self._put(self.experiments, key, dict(item), deleted=deleted)
        return key

    def update_trial(self, item: Mapping[str, Any], *, deleted: bool) -> str | None:
        """Store a TuneTrial; return the key of its experiment, None when it is not ours."""
        if not deleted and (shown := self._shown_before(item)) is not None:
            return shown  # a watch shows what this operator wrote, too
        key = self._update(self._trials, _lean_trial(item), deleted=deleted)
        if key is not None:
            name, spec = item["metadata"]["name"], item.get("spec") or {}
            if spec.get("stop") and not deleted:
                self._stops.setdefault(key, {})[name] = str(spec.get("trialId"))
            elif key in self._stops:
                self._stops[key].pop(name, None)
                if not self._stops[key]:
                    del self._stops[key]
        return key

    def _shown_before(self, trial: Mapping[str, Any]) -> str | None:
        """Return the key of a TuneTrial's experiment if this very state of it is here."""
        metadata = trial["metadata"]
        key = _experiment_key(metadata)
        known = self._trials.get(key, {}).get(metadata["name"])
        version = metadata.get("resourceVersion")
        return key if known is not None and version and _identity(known) == (metadata.get("uid"), version) else None

    def update_pod(self, item: Mapping[str, Any], *, deleted: bool) -> str | None:
        """Store a pod; return the key of its experiment, None when it is not ours."""
        lean = _lean(item)
        metadata = lean["metadata"]
        labels = metadata.get("labels") or {}
        if labels.get(ROLE_LABEL) == DECIDER_ROLE:
            return self._update(self._deciders, lean, deleted=deleted)
        known = ""
        if not labels.get(EXPERIMENT_LABEL):  # another client has removed it: what happens to the pod still counts
            known, _ = self._find_pod(metadata["namespace"], metadata["name"], str(metadata.get("uid", "")))
        name = labels.get(OBJECT_LABEL)
        if not name:
            key = self._update(self._pods, lean, deleted=deleted, key=known)
            if key is not None:
                self._index_pod(key, metadata)
            return key
        key = self._update(self._parts, lean, deleted=deleted, key=known)
        if key is not None:
            names = self._of_object.setdefault(key, {}).setdefault(name, set())
            (names.discard if deleted else names.add)(lean["metadata"]["name"])
            if not names:
                del self._of_object[key][name]
                if not self._of_object[key]:
                    del self._of_object[key]
            if key in self._composers:
                self._composers[key](name)
        return key

    # -- attempts that are objects of another kind --

    def compose_pods(self, key: str, composer: Callable[[str], None] | None) -> None:
        """Have `composer` called with an object's name when one of its pods changes; None = no longer."""
        if composer is None:
            self._composers.pop(key, None)
        else:
            self._composers[key] = composer

    def parts(self, key: str, name: str) -> list[Object]:
        """Return the pods that were made for an object of another kind."""
        found = self._parts.get(key, {})
        return [_unpack(found[each]) for each in sorted(self._of_object.get(key, {}).get(name, ())) if each in found]

    def part(self, key: str, pod_name: str) -> Object | None:
        """Return such a pod by its own name."""
        return _unpack(self._parts.get(key, {}).get(pod_name))

    def all_parts(self, key: str) -> list[Object]:
        """Return all such pods of an experiment."""
        return [_unpack(item) for item in self._parts.get(key, {}).values()]

    def show(self, key: str, name: str, composite: Object, *, deleted: bool) -> None:
        """Store what stands for an attempt's pod."""
        objects = self._pods.setdefault(key, {})
        self._put(objects, name, composite, deleted=deleted)
        if not objects:
            self._pods.pop(key, None)
        self._index_pod(key, composite["metadata"])

    def _index_pod(self, key: str, metadata: Mapping[str, Any]) -> None:
        name, where = metadata["name"], (metadata["namespace"], metadata["name"])
        if (stored := _unpack(self._pods.get(key, {}).get(name))) is not None:  # what came may be older
            before, trial_id = self._index_of_pods.get(where), _trial_of(stored["metadata"])
            if before == (key, trial_id):
                return
            if before is not None:  # the label of a reused pod has changed
                self._remove_from_index(*before, name)
            self._index_of_pods[where] = key, trial_id
            self._pods_by_trial.setdefault(key, {}).setdefault(trial_id, set()).add(name)
        elif (before := self._index_of_pods.pop(where, None)) is not None:
            self._remove_from_index(*before, name)

    def _remove_from_index(self, key: str, trial_id: str, name: str) -> None:
        by_trial = self._pods_by_trial.get(key, {})
        found = by_trial.get(trial_id, set())
        found.discard(name)
        if not found:
            by_trial.pop(trial_id, None)
        if not by_trial:
            self._pods_by_trial.pop(key, None)

    def trial(self, key: str, name: str) -> Object | None:
        """Return one TuneTrial of an experiment."""
        return _unpack(self._trials.get(key, {}).get(name))

    def has_trials(self, key: str) -> bool:
        """Return whether an experiment has TuneTrials."""
        return bool(self._trials.get(key))

    def stops(self, key: str) -> list[str]:
        """Return the ids of an experiment's trials whose TuneTrial says that they are to stop."""
        return list(self._stops.get(key, {}).values())

    def pod(self, key: str, name: str) -> Object | None:
        """Return one pod of an experiment."""
        return _unpack(self._pods.get(key, {}).get(name))

    def experiment_of(self, namespace: str, name: str, uid: str) -> str:
        """Return the key of the experiment that a pod belongs to, "" when there is no such pod."""
        return self._find_pod(namespace, name, uid)[0]

    def pod_by_uid(self, namespace: str, name: str, uid: str) -> Object | None:
        """Return that pod, of whatever experiment; None when no watch has shown it, or it is gone."""
        return _unpack(self._find_pod(namespace, name, uid)[1])

    def _find_pod(self, namespace: str, name: str, uid: str) -> tuple[str, Object | _Packed | None]:
        key, _ = self._index_of_pods.get((namespace, name), ("", ""))
        pod = self._pods.get(key, {}).get(name)
        if pod is not None and _identity(pod)[0] == uid:
            return key, pod
        for key, pods in self._parts.items():
            pod = pods.get(name) if key.startswith(f"{namespace}/") else None
            if pod is not None and _identity(pod)[0] == uid:
                return key, pod
        return "", None

    def pods(self, key: str) -> list[Object]:
        """Return all pods of an experiment."""
        return [_unpack(item) for item in self._pods.get(key, {}).values()]

    def pod_names(self, key: str) -> Collection[str]:
        """Return the names of all pods of an experiment, which change with the next event."""
        return self._pods.get(key, {}).keys()

    def deciders(self, key: str) -> list[Object]:
        """Return the pods of an experiment's deciders."""
        return [_unpack(item) for item in self._deciders.get(key, {}).values()]

    def pods_of_trial(self, key: str, trial_id: str) -> list[Object]:
        """Return the pods of an experiment whose label names the trial."""
        pods = self._pods.get(key, {})
        known = sorted(self._pods_by_trial.get(key, {}).get(trial_id, ()))
        return [_unpack(pods[name]) for name in known if name in pods]

    def deleted_pod(self, uid: str) -> Object | None:
        """Return the last state of a pod that was deleted."""
        return _unpack(self._deleted.get(uid))

    def was_deleted(self, uid: str) -> bool:
        """Return whether the deletion of an object is remembered."""
        return uid in self._deleted

    def versions(self, key: str) -> dict[str, str]:
        """Return the uids of all trials and pods of an experiment, each with the state that is here."""
        pods = (*self._plain_pods(key), *self._parts.get(key, {}).values(), *self._deciders.get(key, {}).values())
        return dict(_identity(item) for item in (*self._trials.get(key, {}).values(), *pods))

    def _plain_pods(self, key: str) -> list[Object | _Packed]:
        pods = self._pods.get(key, {}).values()
        return [each for each in pods if isinstance(each, _Packed) or "pod" not in each]

    def drop(self, key: str, uids: Collection[str]) -> None:
        """These trials and pods of an experiment are not there any more, although no watch has said so."""
        for item in _select(self._trials.get(key, {}).values(), uids):
            self.update_trial(item, deleted=True)
        others = (*self._parts.get(key, {}).values(), *self._deciders.get(key, {}).values())
        for item in _select([*self._plain_pods(key), *others], uids):
            self.update_pod(item, deleted=True)

    def forget_trials(self, key: str) -> None:
        """Drop the TuneTrials of an experiment."""
        for store in (self._trials, self._stops):
            store.pop(key, None)

    def forget(self, key: str) -> None:
        """Drop everything about an experiment."""
        for name in self._pods.get(key, {}):
            self._index_of_pods.pop((key.partition("/")[0], name), None)
        stores = (self._trials, self._stops, self._pods, self._pods_by_trial, self._parts, self._of_object)
        for store in (*stores, self._composers, self._deciders):
            store.pop(key, None)

    def _update(
        self, store: dict[str, dict[str, Object | _Packed]], item: Object, *, deleted: bool, key: str = ""
    ) -> str | None:
        metadata = item["metadata"]
        key = key or _experiment_key(metadata)
        if not key:
            return None
        objects = store.setdefault(key, {})
        self._put(objects, metadata["name"], item, deleted=deleted)
        if item.get("kind") == TRIAL_KIND and objects.get(metadata["name"]) is item and _has_ended(item):
            objects[metadata["name"]] = _Packed(item)
        if not objects:
            store.pop(key, None)
        return key

    def _put(self, objects: dict[str, Any], name: str, item: Object, *, deleted: bool) -> None:
        """Store an object. Answers and watches overtake each other: an older version changes nothing."""
        uid = str(item["metadata"].get("uid", ""))
        known = objects.get(name)
        same = known is not None and _identity(known)[0] == uid
        if deleted:
            if same:  # else a new object of that name came before the news of the old one's end
                del objects[name]
            self._deleted[uid] = _Packed(item)
            while len(self._deleted) > MAX_DELETED:
                self._deleted.popitem(last=False)
        elif (not uid or uid not in self._deleted) and not (known is not None and _older(item, known)):
            objects[name] = item  # an earlier object of that name is older, too


def _identity(item: Object | _Packed) -> tuple[str, str]:
    """Return the uid of an object, and which state of it this is."""
    if isinstance(item, _Packed):
        return item.uid, item.version
    return str(item["metadata"].get("uid", "")), str(item["metadata"].get("resourceVersion", ""))


def _trial_of(metadata: Mapping[str, Any]) -> str:
    return str((metadata.get("labels") or {}).get(TRIAL_ID_LABEL, ""))


def _experiment_key(metadata: Mapping[str, Any]) -> str:
    """Return the key of the experiment that an object's label names, "" if it has none."""
    experiment = (metadata.get("labels") or {}).get(EXPERIMENT_LABEL)
    return f"{metadata['namespace']}/{experiment}" if experiment else ""


@overload
def _unpack(item: Object | _Packed) -> Object: ...
@overload
def _unpack(item: None) -> None: ...
@overload
def _unpack(item: Object | _Packed | None) -> Object | None: ...
def _unpack(item: Object | _Packed | None) -> Object | None:
    return item.unpack() if isinstance(item, _Packed) else item


def _select(items: Iterable[Object | _Packed], uids: Collection[str]) -> list[Object]:
    return [_unpack(item) for item in items if _identity(item)[0] in uids]


def _has_ended(trial: Object) -> bool:
    return trial["status"].get("state") in (TERMINATED, ERROR)


def _older(item: Object, known: Object | _Packed) -> bool:
    """Return whether one state came before another, of an object or of its kind: versions grow (KEP-5504)."""
    versions = [_identity(each)[1] for each in (item, known)]
    return all(each.isdecimal() for each in versions) and int(versions[0]) < int(versions[1])


def key_of(item: Mapping[str, Any]) -> str:
    """Return "namespace/name"."""
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


_BULKY = frozenset({"env", "envFrom", "volumeMounts", "lifecycle", "readinessProbe"})


def _lean(pod: Mapping[str, Any]) -> Object:
    """Return a pod without the parts that are large and never read here: thousands of them are kept."""
    spec = {name: value for name, value in (pod.get("spec") or {}).items() if name != "tolerations"}
    for part in ("containers", "initContainers"):
        if spec.get(part):
            spec[part] = [{name: v for name, v in each.items() if name not in _BULKY} for each in spec[part]]
    if spec.get("volumes"):
        spec["volumes"] = [each for each in spec["volumes"] if "emptyDir" in each]
    metadata = {name: value for name, value in (pod.get("metadata") or {}).items() if name != "managedFields"}
    return {"metadata": metadata, "spec": spec, "status": pod.get("status") or {}}


def _lean_trial(trial: Mapping[str, Any]) -> Object:
    """Return a TuneTrial without what is never read here: its parameters are the engine's."""
    metadata = {name: value for name, value in trial["metadata"].items() if name in _TRIAL_METADATA}
    spec = {name: value for name, value in (trial.get("spec") or {}).items() if name in ("trialId", "stop")}
    return {"kind": TRIAL_KIND, "metadata": metadata, "spec": spec, "status": trial.get("status") or {}}


_TRIAL_METADATA = frozenset({"name", "namespace", "uid", "resourceVersion", "generation", "labels"})
