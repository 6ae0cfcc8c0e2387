"""Why a pod does not run yet."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_objects import NOW, at, live_pod

from trialpod_operator.cluster.pods.pending import PendingReason, pending_reason, summarize


def _unscheduled(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(-40),
    }
    return live_pod(status={"conditions": [scheduled]}, nodeName=None)


def _waits(reason: str, message: str = "") -> dict[str, Any]:
    return live_pod(state={"waiting": {"reason": reason, "message": message}})


_NODES = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {gpu: true}, 2 Insufficient nvidia.com/gpu. "
    "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found."
)


@pytest.mark.parametrize(
    ("pod", "reason", "severity", "words"),
    [
        (_unscheduled(_NODES), "Unschedulable", "waiting", "enough nvidia.com/gpu on 2 of 3 nodes"),
        (_unscheduled(_NODES), "Unschedulable", "waiting", "tolerations"),
        (
            _unscheduled("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."),
            "Unschedulable",
            "waiting",
            "nodeSelector",
        ),
        (_unscheduled('persistentvolumeclaim "data" not found'), "Unschedulable", "stuck", 'claim "data" not found'),
        (_unscheduled("running PreBind plugin failed", "SchedulerError"), "SchedulerError", "waiting", "PreBind"),
        (
            _waits("ImagePullBackOff", 'Back-off pulling image "r/train:1": ErrImagePull: r/train:1: not found'),
            "ImagePullFailed",
            "stuck",
            "r/train:1 cannot be pulled: the registry has no such image",
        ),
        *(
            (_waits("ErrImagePull", words), "ImagePullFailed", "stuck", wanted)
            for words in (
                'failed to pull and unpack image "r/train:1": no match for platform in manifest: not found',
                "no matching manifest for linux/arm64/v8 in the manifest list entries",
                'no image found in image index for architecture "arm64", variant "v8", OS "linux"',
            )
            for wanted in ("not built for the architecture of the pod's node", "kubernetes.io/arch")
        ),
        (
            _waits("ErrImagePull", 'failed to resolve reference "r/train@sha256:a4291b403c": not found'),
            "ImagePullFailed",
            "stuck",
            "the registry has no such image",
        ),
        (_waits("ErrImagePull", "unexpected status: 403 Forbidden"), "ImagePullFailed", "stuck", "Secrets"),
        (_waits("ErrImagePull", "pull access denied, authorization failed"), "ImagePullFailed", "stuck", "Secrets"),
        (_waits("ErrImagePull", "429 Too Many Requests: toomanyrequests"), "ImagePullFailed", "waiting", "limits"),
        (_waits("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout"), "ImagePullFailed", "waiting", "i/o timeout"),
        (_waits("ErrImageNeverPull", ""), "ImagePullFailed", "stuck", "Never"),
        (
            _waits("InvalidImageName", 'Failed to apply default image tag "a:b:c"'),
            "ImagePullFailed",
            "stuck",
            "not a valid image name",
        ),
        (
            _waits("CreateContainerConfigError", 'secret "keys" not found'),
            "SecretNotFound",
            "stuck",
            "Secret keys does",
        ),
        (
            _waits("CreateContainerConfigError", "couldn't find key token in ConfigMap team/settings"),
            "ConfigMapKeyNotFound",
            "stuck",
            "ConfigMap settings has no key token",
        ),
        (
            _waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
            "RunsAsRoot",
            "stuck",
            "runAsUser",
        ),
        (
            _waits("CreateContainerConfigError", 'container\'s runAsUser breaks non-root policy (pod: "a")'),
            "RunsAsRoot",
            "stuck",
            "may not run as root",
        ),
        (_waits("RunContainerError", "failed to start"), "RunContainerError", "waiting", "failed to start"),
        (_waits("ContainerCreating"), "ContainerCreating", "waiting", "node-1 is still preparing"),
    ],
)
def test_the_reason_its_severity_and_the_remedy(pod: dict[str, Any], reason: str, severity: str, words: str) -> None:
    found = pending_reason(pod, NOW)
    assert found is not None
    assert (found.reason, found.severity) == (reason, severity)
    assert words in found.text
    assert found.remedy
    assert "preemption" not in found.text
    assert found.since is not None
    assert found.since < NOW


def test_a_pod_in_a_queue_says_which() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    found = pending_reason(live_pod(schedulingGates=gates, metadata={"labels": labels}), NOW)
    assert found is not None
    assert found.reason == "Queued"
    assert "from the queue gpus; `kubectl describe localqueue gpus`" in found.text
    told = pending_reason(
        live_pod(schedulingGates=gates, metadata={"labels": labels}), NOW, event="LocalQueue gpus doesn't exist"
    )
    assert told is not None
    assert (told.severity, "from the queue gpus: LocalQueue gpus doesn't exist; create it" in told.text) == (
        "stuck",
        True,
    )
    other = pending_reason(live_pod(schedulingGates=[{"name": "example.com/a"}]), NOW)
    assert other is not None
    assert (other.reason, "example.com/a" in other.message) == ("SchedulingGated", True)


def test_gate_just_lifted_is_no_reason() -> None:
    """The scheduler's last word was about the gate, which is not there any more."""
    gated = _unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")
    assert pending_reason(gated, NOW) is None


@pytest.mark.parametrize(
    ("event", "reason", "words"),
    [
        (
            'MountVolume.SetUp failed for volume "trialpod-storage" : secret "minio" not found',
            "SecretNotFound",
            "the Secret minio does not exist",
        ),
        ('MountVolume.SetUp failed for volume "code" : configmap "c" not found', "ConfigMapNotFound", "ConfigMap c"),
        (
            "MountVolume.SetUp failed: references non-existent config key: train.py",
            "ConfigMapKeyNotFound",
            "train.py",
        ),
        ("Unable to attach or mount volumes: timed out", "MountFailed", "timed out"),
    ],
)
def test_unmountable_volume_shows_in_the_event_at_once(event: str, reason: str, words: str) -> None:
    pod = _waits("ContainerCreating")
    found = pending_reason(pod, NOW - 90, event=event)
    assert pending_reason(pod, NOW - 90) is None
    assert found is not None
    assert found.reason == reason
    assert words in found.text


def test_init_containers_are_named() -> None:
    status = {"initContainerStatuses": [{"name": "fetch", "state": {"running": {"startedAt": at(-80)}}}]}
    pod = live_pod(status=status, initContainers=[{"name": "fetch", "image": "f"}])
    found = pending_reason(pod, NOW)
    assert found is not None
    assert (found.reason, found.since) == ("Initializing", NOW - 80)
    status["initContainerStatuses"][0]["state"] = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    broken = pending_reason(live_pod(status=status, initContainers=[{"name": "fetch", "image": "f:9"}]), NOW)
    assert broken is not None
    assert "image f:9" in broken.message


def test_a_pod_that_no_scheduler_looks_at_is_noticed() -> None:
    pod = live_pod(status={"conditions": []}, nodeName=None, schedulerName="mine")
    found = pending_reason(pod, NOW)
    assert found is not None
    assert "mine" in found.message
    assert pending_reason(pod, NOW - 95) is None


@pytest.mark.parametrize(
    "pod",
    [
        {},
        live_pod(phase="Running", state={"running": {}}),
        live_pod(phase="Failed"),
        live_pod(metadata={"deletionTimestamp": at()}),
    ],
)
def test_what_runs_or_ended_or_is_going_does_not_wait(pod: dict[str, Any]) -> None:
    assert pending_reason(pod, NOW) is None


def _entry(
    name: str, reason: str, since: float | None = None, severity: Any = "waiting"
) -> tuple[str, PendingReason]:
    return name, PendingReason(reason=reason, message=f"m-{reason}", remedy="do", severity=severity, since=since)


def test_many_pods_make_one_entry_of_the_most_frequent_reason() -> None:
    entries = [_entry("c", "Queued", NOW - 5), _entry("b", "Queued", NOW - 9), _entry("a", "ImagePullFailed")]
    found = summarize(entries, NOW)
    assert found is not None
    assert (found.reason, found.count, found.since) == ("Queued", 2, at(-9))
    assert found.message == "b: m-Queued; do (1 more wait for other reasons)"
    assert summarize([], NOW) is None


def test_tie_of_reasons_prefers_the_actionable_one() -> None:
    found = summarize([_entry("a", "Queued"), _entry("b", "SecretNotFound", severity="stuck")], NOW)
    assert found is not None
    assert found.reason == "SecretNotFound"


def test_since_is_kept_while_the_reason_stays() -> None:
    first = summarize([_entry("a", "QuotaExceeded")], NOW)
    assert first is not None
    before = {"reason": "QuotaExceeded", "since": first.since}
    later = summarize([_entry("a", "QuotaExceeded", NOW + 60)], NOW + 60, before)
    assert later is not None
    assert later.since == at()
    other = summarize([_entry("a", "Queued")], NOW + 60, before)
    assert other is not None
    assert other.since == at(60)
