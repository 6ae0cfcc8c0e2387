"""Manifests, pods and engines for the tests of the Kubernetes shell's pure parts."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, EndCause
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions, build_pod
from trialpod_operator.engine import events
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import Settings

NOW = 1_790_000_000.0
EXPERIMENT = ObjectRef(namespace="team", name="digits", uid="e-uid")
TRIAL = ObjectRef(namespace="team", name="digits-d75de-00001", uid="t-uid")
OPTIONS = PodOptions(address="https://trialpod.trialpod-system.svc:8443", default_image="trialpod/trial:1")


def at(offset: float = 0.0) -> str:
    """A time as Kubernetes writes it."""
    return dt.datetime.fromtimestamp(NOW + offset, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def experiment(**spec: Any) -> TuneExperiment:
    """An experiment with these fields in its spec; `labels` are its own."""
    labels = spec.pop("labels", {})
    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits", "labels": labels},
        "spec": {"trainable": {"entrypoint": "train:train_digits"}, **spec},
    }
    return msgspec.convert(document, TuneExperiment)


def pod_for(manifest: TuneExperiment, attempt: int = 3, **options: Any) -> dict[str, Any]:
    """The pod of an attempt of the second trial."""
    return build_pod(manifest, EXPERIMENT, TRIAL, "d75de_00001", attempt, OPTIONS, **options)


def live_pod(
    *,
    phase: str = "Pending",
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod as the API server shows it: on a node, its container in the given state."""
    pod = copy.deepcopy(pod_for(experiment(resources={"memory": "2Gi"}, image="r/train:1")))
    pod["metadata"] |= {"uid": "p-uid", "creationTimestamp": at(-100), **(metadata or {})}
    pod["spec"] |= {"nodeName": "node-1", **spec}
    pod["status"] = {
        "phase": phase,
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(-100)}],
        "containerStatuses": []
        if state is None
        else [{"name": "trial", "image": "r/train:1", "ready": False, "restartCount": 0, "state": state}],
        **(status or {}),
    }
    return pod


def terminated(exit_code: int, reason: str = "Error", message: str = "", finished: float = 0.0) -> dict[str, Any]:
    """The state of a container that has ended."""
    ended = {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": at(-90),
        "finishedAt": at(finished),
        "containerID": "containerd://4f2a",
    }
    return {"terminated": {**ended, **({"message": message} if message else {})}}


def target(kind: str, reason: str, message: str) -> dict[str, Any]:
    """A condition that says that the cluster ends the pod."""
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at(-10)}


class Run:
    """An engine over a list of points, driven by hand."""

    def __init__(self, points: int = 3, space: dict[str, Any] | None = None, **changes: Any) -> None:
        self.now = NOW
        search = BasicVariantGenerator(seed=1)
        search.configure(space or {"x": {"grid_search": list(range(points))}}, 1)
        self.engine = Engine(search)
        self.settings = Settings(**{"name": "digits", "trainable_name": "train", "metric": "score", **changes})
        self.apply(events.SettingsObserved(settings=self.settings))

    def apply(self, event: events.AnyEvent) -> None:
        self.engine.apply(event, self.now)

    def trial(self, index: int) -> Any:
        return list(self.engine.state.trials.values())[index]

    def result(self, index: int, score: Any, iteration: int = 1) -> None:
        trial = self.trial(index)
        data = msgspec.Raw(metrics_encoder.encode({"training_iteration": iteration, "score": score}))
        self.apply(
            events.ResultsReceived(
                trial_id=trial.trial_id, attempt=trial.attempt, first=trial.current.received + 1, results=[data]
            )
        )

    def end(self, index: int, cause: EndCause = "completed", error: str = "") -> None:
        trial = self.trial(index)
        end = AttemptEnd(cause=cause, error=error)
        self.apply(events.AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=end))

    def checkpoint(self, index: int, number: int, iteration: int) -> None:
        trial = self.trial(index)
        info = CheckpointInfo(
            name=f"checkpoint_{number:06d}",
            index=number,
            iteration=iteration,
            metrics={},
            attempt=trial.attempt,
            size=10,
        )
        self.apply(events.CheckpointsChanged(trial_id=trial.trial_id, attempt=trial.attempt, committed=[info]))
