"""What the watches have shown: the latest state of every TuneExperiment, TuneTrial and pod of ours.

It is a cache with the API server as the truth. It may lag behind, and it may miss that an object was deleted while a
watch was broken; so whoever acts on the absence of an object asks the server first. Only what the operator reads of a
pod is kept. Owned by the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from trialpod_operator.cluster.names import EXPERIMENT_LABEL

MOST_VANISHED = 10_000
"""Deleted objects whose last state is remembered."""

Object = dict[str, Any]


class Seen:
    """The objects, by namespace and name."""

    def __init__(self) -> None:
        self.experiments: dict[str, Object] = {}  # by "namespace/name"
        self._trials: dict[str, dict[str, Object]] = {}  # by the experiment's key, then by name
        self._pods: dict[str, dict[str, Object]] = {}
        self._vanished: OrderedDict[str, Object] = OrderedDict()  # by the uid, of whatever was deleted

    def take_experiment(self, item: Mapping[str, Any], *, deleted: bool) -> str:
        """Take in a TuneExperiment and return its key."""
        key = key_of(item)
        self._put(self.experiments, key, dict(item), deleted=deleted)
        return key

    def take_trial(self, item: Mapping[str, Any], *, deleted: bool) -> str | None:
        """Take in a TuneTrial; return the key of its experiment, None when it is not ours."""
        return self._take(self._trials, dict(item), deleted=deleted)

    def take_pod(self, item: Mapping[str, Any], *, deleted: bool) -> str | None:
        """Take in a pod; return the key of its experiment, None when it is not ours."""
        return self._take(self._pods, _lean(item), deleted=deleted)

    def trial(self, key: str, name: str) -> Object | None:
        """Return one TuneTrial of an experiment."""
        return self._trials.get(key, {}).get(name)

    def trials(self, key: str) -> list[Object]:
        """Return all TuneTrials of an experiment."""
        return list(self._trials.get(key, {}).values())

    def pod(self, key: str, name: str) -> Object | None:
        """Return one pod of an experiment."""
        return self._pods.get(key, {}).get(name)

    def pods(self, key: str) -> list[Object]:
        """Return all pods of an experiment."""
        return list(self._pods.get(key, {}).values())

    def vanished(self, uid: str) -> Object | None:
        """Return the last state of a pod that was deleted."""
        return self._vanished.get(uid)

    def uids(self, key: str) -> set[str]:
        """Return the uids of all trials and pods of an experiment."""
        return {str(item["metadata"].get("uid")) for item in (*self.trials(key), *self.pods(key))}

    def drop(self, key: str, uids: Collection[str]) -> None:
        """These trials and pods of an experiment are not there any more, although no watch has said so."""
        for item in self.trials(key):
            if item["metadata"].get("uid") in uids:
                self.take_trial(item, deleted=True)
        for item in self.pods(key):
            if item["metadata"].get("uid") in uids:
                self.take_pod(item, deleted=True)

    def forget(self, key: str) -> None:
        """Drop everything about an experiment."""
        self._trials.pop(key, None)
        self._pods.pop(key, None)

    def _take(self, store: dict[str, dict[str, Object]], item: Object, *, deleted: bool) -> str | None:
        metadata = item["metadata"]
        experiment = (metadata.get("labels") or {}).get(EXPERIMENT_LABEL)
        if not experiment:
            return None
        key = f"{metadata['namespace']}/{experiment}"
        objects = store.setdefault(key, {})
        self._put(objects, metadata["name"], item, deleted=deleted)
        if not objects:
            store.pop(key, None)
        return key

    def _put(self, objects: dict[str, Object], name: str, item: Object, *, deleted: bool) -> None:
        """Take in an object. Answers and watches overtake each other: what is older changes nothing."""
        uid = str(item["metadata"].get("uid", ""))
        known = objects.get(name)
        same = known is not None and known["metadata"].get("uid") == item["metadata"].get("uid")
        if deleted:
            if same:  # else a new object of that name came before the news of the old one's end
                del objects[name]
            self._vanished[uid] = item
            while len(self._vanished) > MOST_VANISHED:
                self._vanished.popitem(last=False)
        elif (not uid or uid not in self._vanished) and not (same and known is not None and _older(item, known)):
            objects[name] = item


def _older(item: Object, known: Object) -> bool:
    """Return whether one state of an object came before another; versions are numbers that grow (KEP-5504)."""
    versions = [str(each["metadata"].get("resourceVersion", "")) for each in (item, known)]
    return all(each.isdecimal() for each in versions) and int(versions[0]) < int(versions[1])


def key_of(item: Mapping[str, Any]) -> str:
    """Return "namespace/name"."""
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


_BULKY = frozenset({"env", "envFrom", "volumeMounts", "lifecycle", "startupProbe", "readinessProbe"})


def _lean(pod: Mapping[str, Any]) -> Object:
    """Return a pod without the parts that are large and never read here: thousands of them are kept."""
    spec = {name: value for name, value in (pod.get("spec") or {}).items() if name != "tolerations"}
    for part in ("containers", "initContainers"):
        if part in spec:
            spec[part] = [{name: v for name, v in each.items() if name not in _BULKY} for each in spec[part]]
    if "volumes" in spec:
        spec["volumes"] = [each for each in spec["volumes"] if "emptyDir" in each]
    metadata = {name: value for name, value in (pod.get("metadata") or {}).items() if name != "managedFields"}
    return {"metadata": metadata, "spec": spec, "status": pod.get("status") or {}}
