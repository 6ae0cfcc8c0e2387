"""What the benchmark asks of each system, and what it asks a system to run."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from access import CONTROL_NODE, FOLDER, Cluster, images
from records import PLACE, SOURCE

AT_ONCE = 8


@dataclass(frozen=True)
class Work:
    """An experiment: so many trials, each of so many steps of so many seconds, after each of which it reports."""

    trials: int
    steps: int = 4
    step_s: float = 0.25
    at_once: int = AT_ONCE


@dataclass
class Run:
    """An experiment of a system."""

    name: str
    space: Cluster
    work: Work
    retries: int = 0
    """How often the whole may be retried, of a system that has such a limit."""

    @property
    def folder(self) -> Path:
        """Where it is on the nodes' disks; its trials' records are in `records`."""
        return FOLDER / self.space.namespace

    @property
    def records(self) -> Path:
        """Where its trials' records are."""
        return self.folder / "records"

    @property
    def shared(self) -> Path:
        """A folder that all of its pods may share, as a network file system would be."""
        return self.folder / "shared"

    def make_folders(self) -> None:
        """Make its folders."""
        for folder in (self.records, self.shared):
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # trials run as another user

    def volumes(self, **places: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return volumes and mounts: the records, and more folders by the name that they have below /."""
        found = {PLACE.lstrip("/"): self.records, **places}
        volumes = [{"name": name, "hostPath": {"path": str(folder)}} for name, folder in found.items()]
        return volumes, [{"name": name, "mountPath": f"/{name}"} for name in found]


@dataclass(frozen=True)
class Part:
    """A part of a system that may be killed: the pods with these labels; None as namespace is the experiment's."""

    name: str
    labels: str
    namespace: str | None = None
    retries: int = 0
    """Of the experiment during which it is killed."""


class Peer(ABC):
    """A system that runs experiments in the cluster."""

    name: str
    title: str
    method: str
    """What decides about its trials."""

    namespaces: tuple[str, ...]
    """Those of its own parts."""

    overhead_namespaces: tuple[str, ...] = ()
    """More namespaces with processes that it needs."""

    parts: tuple[Part, ...]
    """What the benchmark kills, one at a time."""

    space_labels: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.cluster = Cluster()

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of what it consists of."""

    @abstractmethod
    def install(self) -> None:
        """Install it, and wait until it is ready; what an earlier run has left is removed before."""

    @abstractmethod
    def remove(self) -> None:
        """Remove all of it, if it is there."""

    @abstractmethod
    def documents(self, run: Run) -> list[dict[str, Any]]:
        """Return what is applied: the experiment is the last one."""

    @abstractmethod
    def state(self, run: Run) -> tuple[bool, str]:
        """Return whether an experiment has ended, and how, or what it says of itself."""

    @abstractmethod
    def results(self, run: Run) -> set[str]:
        """Return what names each trial, in its records, of which the system can show a result."""

    @abstractmethod
    def is_overhead(self, pod: dict[str, Any], line: str) -> bool:
        """Return whether a process with this command line is not a trial."""

    def start(self, run: Run) -> float:
        """Apply an experiment; return when."""
        run.make_folders()
        *before, experiment = self.documents(run)
        if before:
            run.space.apply(*before)
        began = time.time()
        run.space.apply(experiment)
        return began

    def pods_of(self, part: Part, run: Run) -> list[dict[str, Any]]:
        """Return the pods of a part."""
        found = Cluster(part.namespace or run.space.namespace).list("pods", part.labels)
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def pinned(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's specification on the node that is never drained."""
    return {**spec, "nodeSelector": {"kubernetes.io/hostname": CONTROL_NODE}}


def program_image(program: Path, name: str, key: str) -> str:
    """Give the nodes an image of a Go program, and return its reference."""
    reference = f"docker.io/trialpod/{name}:{key}"
    images.import_program(reference, program, name)
    return reference


def config_map(run: Run, name: str, **files: str) -> dict[str, Any]:
    """Return a ConfigMap of the experiment's namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": run.space.namespace},
        "data": {key.replace("__", "."): text for key, text in files.items()},
    }


def listed(objects: list[dict[str, Any]]) -> str:
    """Return objects as one text for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


__all__ = ["AT_ONCE", "SOURCE", "Part", "Peer", "Run", "Work", "config_map", "listed", "pinned", "program_image"]
