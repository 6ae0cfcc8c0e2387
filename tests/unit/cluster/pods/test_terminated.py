"""What ended an attempt, for each shape that Kubernetes gives a pod."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from cluster_objects import NOW, at, live_pod, target, terminated

from trialpod.protocol.messages import AttemptEnd, EndCause
from trialpod_operator.cluster.pods.terminated import blame_beside, presumed_gone, read_termination

_DELETED = {"deletionTimestamp": at(20), "deletionGracePeriodSeconds": 30}  # asked for 10 s ago
_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
_NO_EXEC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "python": executable file not found in $PATH: unknown'
)


def _disrupted(why: str, message: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    status = {"conditions": [target("DisruptionTarget", why, message)], **more}
    phase = "Succeeded" if state["terminated"]["exitCode"] == 0 else "Failed"
    return live_pod(phase=phase, status=status, state=state, metadata=dict(_DELETED))


def _failed(reason: str, message: str, state: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return live_pod(phase="Failed", status={"reason": reason, "message": message}, state=state, **spec)


def _init(state: dict[str, Any], restart: str | None = None) -> dict[str, Any]:
    container = {"name": "fetch", "image": "f", **({"restartPolicy": restart} if restart else {})}
    status = {"initContainerStatuses": [{"name": "fetch", "image": "f", "state": state}]}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    return live_pod(phase="Failed", status=status, state=waiting, initContainers=[container])


def _sandbox(
    ready: str,
    container: str = "",
    init: dict[str, Any] | None = None,
    phase: str = "Pending",
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod before its start, as kubelets of 1.30 to 1.37 show it: whether its sandbox is there, and containers."""
    waiting: dict[str, Any] = {"waiting": {} if container else {"reason": "ContainerCreating"}}
    trial = {"name": "trial", "image": "i", "restartCount": 0, "started": False, "state": waiting}
    status = {
        "conditions": [{"type": "PodReadyToStartContainers", "status": ready, "lastTransitionTime": at(-90)}],
        "containerStatuses": [{**trial, **({"containerID": container} if container else {})}],
        "initContainerStatuses": [] if init is None else [{"name": "fetch", "image": "f", **init}],
    }
    return live_pod(phase=phase, status=status, metadata=metadata)


_MADE = "containerd://bc32"

ROWS: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "scheduler preemption",
        _disrupted(
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
            terminated(143),
        ),
        "disruption",
        "PreemptionByScheduler",
        "higher priority",
    ),
    (
        "preemption after which the process exits with 0",
        _disrupted("PreemptionByScheduler", "default-scheduler: preempting", terminated(0, "Completed")),
        "disruption",
        "PreemptionByScheduler",
        "preempted",
    ),
    (
        "eviction API",
        _disrupted("EvictionByEvictionAPI", "Eviction API: evicting", terminated(137)),
        "disruption",
        "EvictionByEvictionAPI",
        "drain",
    ),
    (
        "NoExecute taint",
        _disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", terminated(1)),
        "disruption",
        "DeletionByTaintManager",
        "NoExecute",
    ),
    (
        "node object gone",
        live_pod(
            phase="Failed",
            status={"conditions": [target("DisruptionTarget", "DeletionByPodGC", "PodGC: node no longer exists")]},
            state={"running": {"startedAt": at(-90)}},
            metadata=dict(_DELETED),
        ),
        "disruption",
        "DeletionByPodGC",
        "lost with its node",
    ),
    (
        "node pressure",
        _disrupted(
            "TerminationByKubelet",
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. ",
            terminated(137),
            reason="Evicted",
        ),
        "disruption",
        "TerminationByKubelet",
        "low on resource: memory",
    ),
    (
        "graceful node shutdown",
        _disrupted(
            "TerminationByKubelet",
            "Pod was terminated in response to imminent node shutdown.",
            terminated(0, "Completed"),
            reason="Terminated",
        ),
        "disruption",
        "TerminationByKubelet",
        "node shutdown",
    ),
    (
        "node shutdown on an old kubelet",
        _failed("Shutdown", "Node is shutting, evicting pods"),
        "disruption",
        "Shutdown",
        "Node is shutting",
    ),
    (
        "critical pod on the node",
        _failed("Preempting", "Preempted in order to admit critical pod"),
        "disruption",
        "Preempting",
        "critical",
    ),
    (
        "node pressure on an old kubelet",
        _failed("Evicted", "The node was low on resource: ephemeral-storage. "),
        "disruption",
        "Evicted",
        "low on resource",
    ),
    ("disk limit", _failed("Evicted", _DISK, terminated(137)), "failure", "StorageLimitExceeded", "1Gi; raise"),
    (
        "emptyDir limit",
        _failed("Evicted", 'Usage of EmptyDir volume "trialpod-work" exceeds the limit "10Mi". '),
        "failure",
        "StorageLimitExceeded",
        "sizeLimit",
    ),
    (
        "out of memory",
        live_pod(phase="Failed", state=terminated(137, "OOMKilled")),
        "failure",
        "OOMKilled",
        "limit of 2Gi; raise spec.resources.memory",
    ),
    (
        "a worker out of memory",
        live_pod(phase="Failed", state=terminated(137, "OOMKilled"), metadata={"labels": {"trialpod.dev/rank": "1"}}),
        "failure",
        "OOMKilled",
        "limit of 2Gi; raise memory in spec.workers.resources (in spec.resources, without these)",
    ),
    (
        "deleted by another client",
        live_pod(phase="Failed", state=terminated(143), metadata=dict(_DELETED)),
        "disruption",
        "PodDeleted",
        "another client",
    ),
    (
        "failed by itself before a client deleted it",
        live_pod(phase="Failed", state=terminated(3, finished=-60), metadata=dict(_DELETED)),
        "failure",
        "ContainerFailed",
        "status 3",
    ),
    (
        "Kueue preemption",
        live_pod(
            phase="Failed",
            status={"conditions": [target("TerminationTarget", "WorkloadEvictedDueToPreempted", "Preempted by x")]},
            state=terminated(143),
        ),
        "disruption",
        "WorkloadEvictedDueToPreempted",
        "Kueue",
    ),
    (
        "rejected at admission",
        _failed("OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"),
        "disruption",
        "OutOfnvidia.com/gpu",
        "turned the pod away",
    ),
    (
        "device plug-in failed",
        _failed("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
        "disruption",
        "UnexpectedAdmissionError",
        "no healthy devices",
    ),
    (
        "a sysctl that no node allows",
        _failed("SysctlForbidden", 'forbidden sysctl: "kernel.x" not allowlisted'),
        "failure",
        "SysctlForbidden",
        "spec.template.spec",
    ),
    (
        "deadline",
        _failed("DeadlineExceeded", "Pod was active on the node longer than the deadline", activeDeadlineSeconds=60),
        "failure",
        "DeadlineExceeded",
        "of 60 s; raise it",
    ),
    (
        "no such command",
        live_pod(phase="Failed", state=terminated(128, "StartError", _NO_EXEC)),
        "failure",
        "CommandNotFound",
        "executable file not found",
    ),
    (
        "memory limit below what a container needs",
        live_pod(
            phase="Failed",
            state=terminated(128, "StartError", "container init was OOM-killed (memory limit too low?)"),
        ),
        "failure",
        "OOMKilled",
        "raise",
    ),
    (
        "a runtime that is broken on this node",
        live_pod(phase="Failed", state=terminated(128, "StartError", "nvidia-container-cli: driver not loaded")),
        "disruption",
        "StartError",
        "nvidia-container-cli",
    ),
    (
        "lost by its node",
        live_pod(phase="Failed", state=terminated(137, "ContainerStatusUnknown", "could not be located")),
        "disruption",
        "ContainerStatusUnknown",
        "lost track",
    ),
    (
        "its node restarted between making and starting its container",
        _sandbox("False", _MADE),
        "disruption",
        "SandboxLost",
        "node-1 lost the pod",
    ),
    (
        "its node restarted after an init container",
        _sandbox("False", init={"containerID": "containerd://4f2b", "state": terminated(0, "Completed")}),
        "disruption",
        "SandboxLost",
        "another pod is tried",
    ),
    (
        "lost by the container runtime, with its shim",
        live_pod(phase="Failed", state=terminated(255)),
        "disruption",
        "ContainerStatusUnknown",
        "lost track",
    ),
    (
        "status 255 of a command that may mean anything by it",
        live_pod(
            phase="Failed",
            state=terminated(255),
            containers=[{"name": "trial", "image": "r/train:1", "command": ["ssh", "somewhere"]}],
        ),
        "failure",
        "ContainerFailed",
        "status 255",
    ),
    (
        "an image of another architecture, with the status of a lost container",
        live_pod(phase="Failed", state=terminated(255, message="exec /usr/local/bin/python: exec format error\n")),
        "failure",
        "CommandNotFound",
        "r/train:1 is built for another architecture than that of node-1 (exec /usr/local/bin/python: exec format",
    ),
    (
        "an image of another architecture, as older runtimes say it",
        live_pod(
            phase="Failed",
            state=terminated(1, message="standard_init_linux.go:228: exec user process caused: exec format error"),
        ),
        "failure",
        "CommandNotFound",
        "kubernetes.io/arch",
    ),
    (
        "a program of another architecture that the trial has started",
        live_pod(
            phase="Failed",
            state=terminated(1, message="Traceback:\nOSError: [Errno 8] exec ./tool: Exec format error: './tool'"),
        ),
        "failure",
        "ContainerFailed",
        "status 1 before the trial was over: OSError",
    ),
    (
        "an init container of another architecture",
        _init(terminated(255, message="exec /bin/cp: exec format error")),
        "failure",
        "InitContainerFailed",
        "fetch: the image f is built for another architecture than that of node-1",
    ),
    (
        "init container",
        _init(terminated(2, message="no data\n")),
        "failure",
        "InitContainerFailed",
        "status 2: no data",
    ),
    ("init container memory", _init(terminated(137, "OOMKilled")), "failure", "InitContainerFailed", "out of memory"),
    ("a sidecar's end says nothing", _init(terminated(2), "Always"), "disruption", "PodEnded", "without saying why"),
    (
        "exit 0",
        live_pod(phase="Succeeded", state=terminated(0, "Completed")),
        "failure",
        "ExitedSilently",
        "status 0",
    ),
    (
        "exit 1 with the last line of its output",
        live_pod(phase="Failed", state=terminated(1, message="Traceback:\nValueError: bad rate\n")),
        "failure",
        "ContainerFailed",
        "status 1 before the trial was over: ValueError: bad rate",
    ),
    (
        "an image without trialpod",
        live_pod(
            phase="Failed",
            state=terminated(1, message="/usr/bin/python: Error while finding module: No module named 'trialpod'"),
        ),
        "failure",
        "NoRuntime",
        "r/train:1 has no trialpod",
    ),
    (
        "a shell that finds no command",
        live_pod(phase="Failed", state=terminated(127)),
        "failure",
        "CommandNotFound",
        "",
    ),
    ("a crash", live_pod(phase="Failed", state=terminated(139)), "failure", "ContainerFailed", "SIGSEGV"),
    ("shared memory", live_pod(phase="Failed", state=terminated(135)), "failure", "ContainerFailed", "/dev/shm"),
    ("SIGKILL from nowhere", live_pod(phase="Failed", state=terminated(137)), "failure", "ContainerFailed", "memory"),
    ("SIGTERM from nowhere", live_pod(phase="Failed", state=terminated(143)), "disruption", "Terminated", "its node"),
    (
        "SIGKILL although the phase is still Running, because of a sidecar",
        live_pod(phase="Running", state=terminated(9)),
        "failure",
        "ContainerFailed",
        "status 9",
    ),
]
NO_RETRY = {"CommandNotFound", "NoRuntime", "SysctlForbidden"}


def test_exit_of_an_orphaned_pod_is_no_failure() -> None:
    """It may exit because it was refused its next trial, before its own deletion can be seen."""
    ended = live_pod(phase="Failed", state=terminated(1))
    failed = read_termination(ended)
    assert failed is not None
    assert failed.kind == "failure"
    found = read_termination(ended, orphaned=True)
    assert found is not None
    assert (found.kind, found.reason) == ("disruption", "PodDeleted")


@pytest.mark.parametrize(("pod", "kind", "reason", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_table_of_endings(pod: dict[str, Any], kind: str, reason: str, words: str) -> None:
    ending = read_termination(pod)
    assert ending is not None
    assert (ending.kind, ending.reason) == (kind, reason)
    assert words in ending.message
    assert "\n" not in ending.message
    assert ending.counts_as_failure == (kind == "failure")
    assert ending.retry == (reason not in NO_RETRY)
    end = ending.attempt_end()
    assert end.cause in (("failed",) if kind == "failure" else ("lost", "preempted"))
    assert (end.error, end.retry) == (ending.message, ending.retry)


OVER = [row for row in ROWS if row[3] != "SandboxLost"]


@pytest.mark.parametrize("row", OVER, ids=[row[0] for row in OVER])
def test_attempts_own_report_precedes_our_deletion(row: tuple[Any, ...]) -> None:
    said = read_termination(row[1], said_end=True, deleted_by_us=True)
    assert said is not None
    assert said.kind == "completed"
    ours = read_termination(row[1], deleted_by_us=True)
    assert ours is not None
    assert (ours.kind, ours.cause, ours.reason) == ("disruption", "preempted", "DeletedByOperator")


@pytest.mark.parametrize(
    "pod",
    [
        live_pod(),
        live_pod(state={"waiting": {"reason": "ContainerCreating"}}),
        live_pod(phase="Running", state={"running": {"startedAt": at(-90)}}),
        live_pod(phase="Running", state={"running": {}}, metadata=dict(_DELETED)),
        live_pod(
            phase="Running",
            state={"running": {}},
            status={"conditions": [target("DisruptionTarget", "EvictionByEvictionAPI", "")]},
        ),
        live_pod(phase="Unknown", state={"running": {}}),
        _sandbox("False"),
        _sandbox("True", _MADE),
        _sandbox("False", _MADE, metadata=dict(_DELETED)),
        _sandbox("False", _MADE, phase="Running"),
        {},
    ],
)
def test_what_still_runs_has_no_ending(pod: dict[str, Any]) -> None:
    assert read_termination(pod) is None
    assert read_termination(pod, said_end=True) is None


def test_pod_deleted_before_start_is_waited_for() -> None:
    assert read_termination(_sandbox("False", _MADE), deleted_by_us=True) is None
    assert read_termination(_sandbox("False", _MADE), said_end=True) is None


def test_a_disruption_that_was_called_off_explains_nothing() -> None:
    called_off = {**target("DisruptionTarget", "PreemptionByScheduler", ""), "status": "False"}
    ending = read_termination(live_pod(phase="Failed", status={"conditions": [called_off]}, state=terminated(1)))
    assert ending is not None
    assert ending.kind == "failure"


@pytest.mark.parametrize("pod", [None, live_pod(phase="Running", state={"running": {}})])
def test_a_pod_that_vanished_without_a_word_is_lost(pod: dict[str, Any] | None) -> None:
    ending = read_termination(pod, vanished=True)
    assert ending is not None
    assert (ending.kind, ending.cause, ending.reason) == ("disruption", "lost", "PodVanished")


def test_a_vanished_pod_is_judged_by_what_was_last_seen_of_it() -> None:
    ending = read_termination(live_pod(phase="Failed", state=terminated(137, "OOMKilled")), vanished=True)
    assert ending is not None
    assert ending.reason == "OOMKilled"


def test_memory_without_a_limit_is_the_nodes() -> None:
    pod = live_pod(phase="Failed", state=terminated(137, "OOMKilled"))
    del pod["spec"]["containers"][0]["resources"]
    ending = read_termination(pod)
    assert ending is not None
    assert "has no limit; set spec.resources.memory" in ending.message


def test_sigterm_with_a_liveness_probe_is_a_failure() -> None:
    pod = live_pod(phase="Failed", state=terminated(143))
    pod["spec"]["containers"][0]["livenessProbe"] = {"exec": {"command": ["true"]}}
    ending = read_termination(pod)
    assert ending is not None
    assert ending.counts_as_failure
    assert "liveness probe" in ending.message


def test_container_before_the_trials_is_not_mistaken_for_it() -> None:
    pod = live_pod(phase="Running", state={"running": {}})
    pod["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "p"})
    pod["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": terminated(1)})
    assert read_termination(pod) is None


def _stuck(overdue: float, **status: Any) -> dict[str, Any]:
    return live_pod(
        phase="Running",
        state={"running": {}},
        metadata={"deletionTimestamp": at(-overdue), "deletionGracePeriodSeconds": 30},
        status=status,
    )


def test_pod_on_a_dead_node_is_given_up_after_its_grace() -> None:
    tainted = [target("DisruptionTarget", "DeletionByTaintManager", "")]
    assert presumed_gone(_stuck(21), NOW, node_ready=False)
    assert presumed_gone(_stuck(21, conditions=tainted), NOW)
    assert presumed_gone(_stuck(21, reason="NodeLost"), NOW)
    assert not presumed_gone(_stuck(19), NOW, node_ready=False)
    assert not presumed_gone(_stuck(21), NOW, node_ready=True)
    assert not presumed_gone(_stuck(21), NOW)
    assert not presumed_gone(live_pod(phase="Running"), NOW, node_ready=False)
    ending = read_termination(_stuck(21), gone=True)
    assert ending is not None
    assert (ending.cause, ending.reason) == ("lost", "NodeUnreachable")
    assert "node-1" in ending.message


def test_last_line_of_a_killed_process_is_not_called_its_cause() -> None:
    ended = terminated(137, message="STEP iteration=55 done=55\n")
    ending = read_termination(live_pod(phase="Failed", state=ended))
    assert ending is not None
    assert ending.message.endswith("; the last line that it printed: STEP iteration=55 done=55")


def test_an_image_whose_python_does_not_fit() -> None:
    words = "the image has Python 3.9.2, which has reached its end of life"
    pod = live_pod(phase="Failed", state=terminated(125, message=words))
    pod["spec"]["containers"][0]["command"] = ["/var/run/trialpod-runtime/bin/python", "-ISu", "-m", "x"]
    found = read_termination(pod)
    assert found is not None
    assert (found.reason, found.message, found.retry) == ("NoRuntime", words, False)
    pod["spec"]["containers"][0]["command"] = ["/own/start"]
    assert read_termination(pod).reason == "ContainerFailed"  # type: ignore[union-attr]


class TestBlameBeside:
    """A failure that the attempt reported, and a container of its pod that had failed before."""

    END = AttemptEnd(cause="failed", error="ValueError: no")
    PROXY: ClassVar[dict[str, Any]] = {"name": "proxy", "state": terminated(2, message="no route\n")}

    def pod(self, **metadata: Any) -> dict[str, Any]:
        made = live_pod(phase="Running", state={"running": {}}, metadata=metadata)
        made["status"]["containerStatuses"].append(self.PROXY)
        return made

    def test_names_the_container(self) -> None:
        blamed = blame_beside(self.pod(), self.END)
        assert blamed.error == "ValueError: no; before that container proxy exited with status 2: no route"

    def test_leaves_out_one_that_ended_with_its_pod(self) -> None:
        assert blame_beside(self.pod(**_DELETED), self.END) == self.END

    @pytest.mark.parametrize("cause", ["completed", "preempted"])
    def test_concerns_failures_only(self, cause: EndCause) -> None:
        end = AttemptEnd(cause=cause)
        assert blame_beside(self.pod(), end) == end
