"""Every reason that the operator writes: in conditions, in `waiting`, for the end of an attempt, in events.

The one place for their names, meanings and remedies; code uses the members. `tools/make_crds` writes docs/reasons.md
and the texts of `kubectl explain` from it. A reason that Kubernetes, Kueue or a container runtime gave is passed on
as it is; the usual ones are listed under "Given by the cluster".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from typing import Self

Place = Literal["condition", "waiting", "ending", "event"]


class Reason(str, Enum):  # no StrEnum: deciders run with Python 3.10 too
    """One word for programs; `meaning` and `remedy` are for people.

    Attributes:
        places: where it is written.
        meaning: what it says, as a clause.
        remedy: what to do about it; "" where nothing is to be done.
    """

    places: tuple[Place, ...]
    meaning: str
    remedy: str

    def __new__(cls, value: str, places: str, meaning: str, remedy: str = "") -> Self:
        """Make a member; `places` are separated by spaces."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.places = tuple(place for place in get_args(Place) if place in places.split())
        member.meaning = meaning
        member.remedy = remedy
        return member

    def __str__(self) -> str:
        """Return its word, as a StrEnum does."""
        return str.__str__(self)

    # The course of an experiment and of its trials.
    STARTING = "Starting", "condition", "the operator opens the experiment, or the trial's pod starts"
    RUNNING = "Running", "condition", "trials run"
    ATTEMPT_FAILED = (
        "AttemptFailed", "condition", "a worker of the trial has failed, or its deadline passed; the attempt ends",
    )  # fmt: skip
    PENDING = "Pending", "condition", "the trial is queued, or waits for a retry"
    PAUSED = "Paused", "condition", "the scheduler or a suspension holds the trial back"
    SUSPENDING = "Suspending", "condition", "trials save and stop"
    SUSPENDED = "Suspended", "condition event", "no trial runs", "set spec.suspend to false to continue"
    STOPPING = "Stopping", "condition", "all trials are being stopped"
    STOPPED = "Stopped", "condition event", "the experiment ended at its budget or at a user's request"
    SUCCEEDED = "Succeeded", "condition event", "it ended without failing"
    FAILED = "Failed", "condition event", "it failed", "correct what the message names, then `trialpod retry`"

    # What keeps a whole experiment from running.
    INVALID_SPEC = (
        "InvalidSpec", "condition", "the manifest is not valid",
        "the message lists what is wrong; `trialpod validate` shows it with lines",
    )  # fmt: skip
    STORAGE_MISSING = (
        "StorageMissing", "condition", "there is no storage",
        "name an `s3://` URI in spec.storage, or set the chart's `defaults.storage`",
    )  # fmt: skip
    STORAGE_NOT_SHARED = (
        "StorageNotShared", "condition", "the storage is a folder, which pods do not share",
        "name an `s3://` URI in spec.storage",
    )  # fmt: skip
    STORAGE_UNSUPPORTED = (
        "StorageUnsupported", "condition",
        "no storage is installed for the URI's scheme, or its writes are not conditional",
        "use an `s3://` URI, or install the storage's package in the operator's image",
    )  # fmt: skip
    STORAGE_NOT_ALLOWED = (
        "StorageNotAllowed", "condition",
        "the operator's keys open one prefix for each namespace, and the URI is outside it",
        "use that prefix in spec.storage.uri, or keys of your own in credentialsSecret",
    )  # fmt: skip
    NO_OPERATOR = (
        "NoOperator", "condition",
        "no operator serves the experiment's shard; trials continue and keep their results",
        "`trialpod check` shows the operators; look at their pods and logs, the experiment continues by itself",
    )  # fmt: skip
    STORAGE_UNAVAILABLE = (
        "StorageUnavailable", "condition event", "the storage does not answer the operator; trials continue",
        "check the S3 server; the experiment continues when it answers",
    )  # fmt: skip
    STORAGE_EMPTIED = (
        "StorageEmptied", "condition", "the experiment's data was removed from the bucket",
        "restore it from a backup, or delete the experiment and apply it again",
    )  # fmt: skip
    STORAGE_MOVED = (
        "StorageMoved", "condition",
        "the experiment names no storage, and the operator's default is another one than when it began",
        "an administrator sets the chart's `defaults.storage` back; the experiment then continues by itself",
    )  # fmt: skip
    JOURNAL_DAMAGED = (
        "JournalDamaged", "condition",
        "objects of the journal are missing or damaged",
        "restore them; or start again without what is left, as the message says",
    )  # fmt: skip
    OPERATOR_KEYS_MISSING = (
        "OperatorKeysMissing", "condition", "the operator's own Secret lacks keys for the storage",
        "an administrator has to add them",
    )  # fmt: skip
    SECRET_INVALID = (
        "SecretInvalid", "condition", "the Secret of credentialsSecret lacks a key, or it is not base64",
        "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in it",
    )  # fmt: skip
    SCOPED_CREDENTIALS_REFUSED = (
        "ScopedCredentialsRefused", "condition", "the token service refuses short-lived keys",
        "check scopedCredentials, and the permissions of the keys in the Secret",
    )  # fmt: skip
    SCOPED_CREDENTIALS_IMPOSSIBLE = (
        "ScopedCredentialsImpossible", "condition", "the token service cannot give keys like these",
        "as the message says: another URI, or no scopedCredentials",
    )  # fmt: skip
    SCOPED_CREDENTIALS_NEED_SECRET = (
        "ScopedCredentialsNeedSecret", "condition", "there are no keys from which short-lived ones can be made",
        "name a Secret in spec.storage.credentialsSecret",
    )  # fmt: skip
    CHANGE_PENDING = (
        "ChangePending", "condition", "spec.trainable was corrected while attempts run that have reported nothing",
        "it is used when they have ended; `trialpod suspend` ends them",
    )  # fmt: skip
    REFUSED = (
        "Refused", "condition waiting",
        "another experiment owns the location, spec.trainable changed after results, or keys or a pod are refused",
        "correct what the message names; corrected keys are found within seconds",
    )  # fmt: skip

    # What keeps code of the user's from deciding.
    DECIDER_STARTING = (
        "DeciderStarting", "condition",
        "the pod that runs the experiment's own deciding code starts, or starts again",
        "trials continue to their next decision and wait there; the message says what the pod waits for",
    )  # fmt: skip
    DECIDER_LATE = (
        "DeciderLate", "condition", "the experiment's own deciding code takes long",
        "trials continue to their next decision and wait there; make the code faster, or give spec.decider more CPU",
    )  # fmt: skip
    DECIDER_FAILED = (
        "DeciderFailed", "condition", "the experiment's own deciding code could not be loaded, hung or ended its pod",
        "the message has the error; correct the image or spec.decider, and it is retried",
    )  # fmt: skip
    DECIDER_OUT_OF_MEMORY = (
        "DeciderOutOfMemory", "condition", "the experiment's own deciding code needs more memory than its pod has",
        "raise spec.decider.resources.memory",
    )  # fmt: skip

    # Why a pod does not run, or could not be created.
    UNSCHEDULABLE = (
        "Unschedulable", "waiting", "no node fits the pod",
        "compare resources, node selectors and taints with the scheduler's message",
    )  # fmt: skip
    NOT_SCHEDULED = (
        "NotScheduled", "waiting", "the scheduler has not handled the pod", "check that it runs, and schedulerName",
    )  # fmt: skip
    SCHEDULER_ERROR = "SchedulerError", "waiting", "the scheduler failed", "retried automatically"
    SCHEDULING_GATED = (
        "SchedulingGated", "waiting", "a scheduling gate holds the pod", "the owner of the gate has to lift it",
    )  # fmt: skip
    QUEUED = (
        "Queued", "waiting", "Kueue has not admitted the pod",
        "the message is Kueue's; `trialpod why` shows how full the queue is",
    )  # fmt: skip
    WAITS_FOR_GROUP = "WaitsForGroup", "waiting", "the other pods of the trial do not run yet"
    GROUP_INCOMPLETE = (
        "GroupIncomplete", "waiting ending", "the pods of the trial did not all run within spec.workers.startTimeout",
        "make room for all of them: smaller resources, a lower spec.maxConcurrentTrials, or Kueue",
    )  # fmt: skip
    QUOTA_EXCEEDED = (
        "QuotaExceeded", "waiting", "the namespace's ResourceQuota is used up",
        "it starts when other pods end; lower spec.maxConcurrentTrials or spec.resources, or raise the quota",
    )  # fmt: skip
    QUOTA_NEEDS_RESOURCES = (
        "QuotaNeedsResources", "waiting", "the ResourceQuota wants every pod to state its resources",
        "set them in spec.resources (and for other containers in spec.template)",
    )  # fmt: skip
    LIMIT_RANGE = (
        "LimitRange", "waiting", "the namespace's LimitRange does not allow the pod", "change spec.resources to fit",
    )  # fmt: skip
    POD_SECURITY = (
        "PodSecurity", "waiting", "the namespace's Pod Security level does not allow the pod",
        "change these fields in spec.template.spec, or use another namespace",
    )  # fmt: skip
    RUNS_AS_ROOT = (
        "RunsAsRoot", "waiting", "the container may not run as root", "set a numeric `USER` in the image",
    )  # fmt: skip
    POLICY_DENIED = (
        "PolicyDenied", "waiting", "an admission policy of the cluster refuses the pod",
        "change spec.template as it says, or ask the cluster's administrator",
    )  # fmt: skip
    FORBIDDEN = "Forbidden", "waiting", "the API server refuses the pod", "ask the cluster's administrator"
    IMAGE_PULL_FAILED = (
        "ImagePullFailed", "waiting", "the image cannot be pulled",
        "check the image's name, `imagePullSecrets`, the registry",
    )  # fmt: skip
    SECRET_NOT_FOUND = (
        "SecretNotFound", "condition waiting", "the Secret of credentialsSecret, or one of the pod, does not exist",
        "create it in the experiment's namespace",
    )  # fmt: skip
    SECRET_KEY_NOT_FOUND = (
        "SecretKeyNotFound", "waiting", "a Secret of the pod lacks a key", "add it; the pod then starts by itself",
    )  # fmt: skip
    CONFIG_MAP_NOT_FOUND = (
        "ConfigMapNotFound", "condition waiting", "the ConfigMap of configMapRef, or one of the pod, does not exist",
        "create it in the experiment's namespace",
    )  # fmt: skip
    CONFIG_MAP_KEY_NOT_FOUND = (
        "ConfigMapKeyNotFound", "condition waiting", "a ConfigMap lacks a key", "add it, or correct the key in spec",
    )  # fmt: skip
    MOUNT_FAILED = (
        "MountFailed", "waiting", "a volume cannot be mounted", "retried automatically; see `kubectl describe pod`",
    )  # fmt: skip
    SERVICE_ACCOUNT_NOT_FOUND = (
        "ServiceAccountNotFound", "waiting", "the pod's service account does not exist",
        "create it, or correct spec.template.spec.serviceAccountName",
    )  # fmt: skip
    PRIORITY_CLASS_NOT_FOUND = (
        "PriorityClassNotFound", "waiting", "the pod's priority class does not exist",
        "create it, or correct spec.template.spec.priorityClassName",
    )  # fmt: skip
    INVALID_TEMPLATE = (
        "InvalidTemplate", "waiting", "the API server refuses the pod as invalid, or a field of it is misspelt",
        "correct spec.template",
    )  # fmt: skip
    TOO_LARGE = "TooLarge", "waiting", "the pod is larger than the API server takes", "make spec.template smaller"
    NAME_TAKEN = (
        "NameTaken", "waiting", "another object has the name of the pod",
        "retried automatically; delete it if it is not one of trialpod's",
    )  # fmt: skip
    NAMESPACE_TERMINATING = (
        "NamespaceTerminating", "waiting", "the namespace is being deleted", "use another namespace",
    )  # fmt: skip
    OPERATOR_FORBIDDEN = (
        "OperatorForbidden", "waiting", "the operator has no permission to do this in the namespace",
        "give it the permissions: the chart's `watchNamespaces` lists where it may work",
    )  # fmt: skip
    OPERATOR_UNAUTHORIZED = (
        "OperatorUnauthorized", "waiting", "the API server does not accept the operator's credentials",
        "restart the operator, and check its service account",
    )  # fmt: skip
    API_SERVER_BUSY = "ApiServerBusy", "waiting", "the API server limits requests", "retried automatically"
    API_SERVER_UNAVAILABLE = (
        "ApiServerUnavailable",
        "waiting event",
        "the API server did not answer",
        "retried automatically",
    )
    INITIALIZING = "Initializing", "waiting", "an init container runs", "`kubectl logs` shows what it does"
    CONTAINER_CREATING = (
        "ContainerCreating", "waiting", "the node prepares the container", "`kubectl describe pod` shows its steps",
    )  # fmt: skip
    CRASH_LOOP_BACK_OFF = (
        "CrashLoopBackOff", "waiting", "an init container or sidecar keeps failing",
        "`kubectl logs --previous` shows why; correct it in spec.template",
    )  # fmt: skip
    TRIAL_KIND_MISSING = (
        "TrialKindMissing", "waiting", "the API server does not know the kind of spec.trialResource",
        "install its definition and controller, or correct apiVersion and kind (`kubectl api-resources`)",
    )  # fmt: skip
    INVALID_TRIAL_RESOURCE = (
        "InvalidTrialResource", "waiting", "the API server refuses the object of spec.trialResource",
        "correct spec.trialResource.template",
    )  # fmt: skip
    TRIAL_RESOURCE_WAITING = (
        "TrialResourceWaiting", "waiting", "the object of spec.trialResource has no pod that runs the trial yet",
        "`kubectl describe` shows its events and conditions; check that its controller runs",
    )  # fmt: skip
    TRIAL_RESOURCE_WITHOUT_STATUS = (
        "TrialResourceWithoutStatus", "waiting", "no controller has given the object of spec.trialResource a status",
        "install the controller of its kind, or check why it does not run; the trial then starts by itself",
    )  # fmt: skip
    CONTAINER_WAITING = "ContainerWaiting", "waiting", "a container waits", "see `kubectl describe pod`"

    # What ended an attempt.
    REPORTED = "Reported", "ending", "the attempt reported its end itself"
    CONTAINER_FAILED = (
        "ContainerFailed", "ending", "the process exited with an error or was killed by a signal",
        "the message has its last line, the trial's log the rest",
    )  # fmt: skip
    EXITED_SILENTLY = (
        "ExitedSilently", "ending", "the process exited with status 0 before it reported its result",
        "look for `os._exit`, or a command that is not trialpod's runner",
    )  # fmt: skip
    OOM_KILLED = "OOMKilled", "ending", "the trial ran out of memory", "raise spec.resources.memory"
    STORAGE_LIMIT_EXCEEDED = (
        "StorageLimitExceeded", "ending", "the pod wrote more to its local disk than allowed",
        "raise `ephemeral-storage`, or the volume's sizeLimit",
    )  # fmt: skip
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded", "ending", "the pod reached its activeDeadlineSeconds", "raise it in the template",
    )  # fmt: skip
    INIT_CONTAINER_FAILED = (
        "InitContainerFailed", "ending", "an init container failed", "its output is in the trial's log",
    )  # fmt: skip
    COMMAND_NOT_FOUND = (
        "CommandNotFound", "ending", "the node cannot start the command of the trial's container; it is not retried",
        "correct the command or the image as the message says; after three such trials the experiment fails",
    )  # fmt: skip
    NO_RUNTIME = (
        "NoRuntime", "ending", "the image has no trialpod, or a Python that is not supported; it is not retried",
        "use an image as the message says, or leave out `spec.trainable.runtime: image`",
    )  # fmt: skip
    TRIAL_RESOURCE_FAILED = (
        "TrialResourceFailed", "ending", "the object of spec.trialResource failed, or ended without its pod",
        "the message has the object's own message",
    )  # fmt: skip
    WORKER_FAILED = "WorkerFailed", "ending", "a worker of the trial failed", "the message has the worker's error"
    DELETED_BY_OPERATOR = "DeletedByOperator", "ending", "trialpod deleted the pod"
    POD_DELETED = "PodDeleted", "ending", "a user or another controller deleted the pod"
    POD_VANISHED = "PodVanished", "ending", "the pod vanished: deleted, or lost with its node"
    POD_ENDED = "PodEnded", "ending", "the pod ended without a status of its container"
    NODE_UNREACHABLE = "NodeUnreachable", "ending", "the node stopped answering"
    SANDBOX_LOST = "SandboxLost", "ending", "the node lost the pod before its container started"
    PREEMPTED = "Preempted", "ending", "the cluster ended the attempt"

    # Given by the cluster.
    EVICTED = "Evicted", "ending", "the node was short of memory or disk"
    TERMINATED = "Terminated", "ending", "the node ended the process"
    CONTAINER_STATUS_UNKNOWN = "ContainerStatusUnknown", "ending", "the node lost track of the container"
    DISRUPTION_TARGET = "DisruptionTarget", "ending", "the cluster disrupted the pod"
    TERMINATION_TARGET = "TerminationTarget", "ending", "Kueue preempted the pod"
    PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler", "ending", "preempted by a pod of higher priority"
    EVICTION_BY_EVICTION_API = (
        "EvictionByEvictionAPI", "ending", "evicted (a drain, an autoscaler or a descheduler)",
    )  # fmt: skip
    DELETION_BY_TAINT_MANAGER = (
        "DeletionByTaintManager", "ending", "removed from a node that is not ready or has a NoExecute taint",
    )  # fmt: skip
    DELETION_BY_POD_GC = "DeletionByPodGC", "ending", "lost with its node"
    TERMINATION_BY_KUBELET = "TerminationByKubelet", "ending", "ended by its node"

    # Events of the experiment.
    STARTED = "Started", "event", "the operator started the experiment"
    SPEC_CHANGED = "SpecChanged", "event", "a field was changed: from what, to what, by which client"
    CODE_CHANGED = (
        "CodeChanged", "event", "the ConfigMap with its code changed; trials keep the code of the start",
        "start another experiment to use the new code",
    )  # fmt: skip
    NOTICE = "Notice", "event", "something about the whole experiment, such as a search space in which nothing varies"
    RESUMED = "Resumed", "event", "trials run again after a suspension"
    RETRYING = "Retrying", "event", "failed trials are retried at a user's request"
    NOTHING_TO_RETRY = "NothingToRetry", "event", "a retry was requested, and no trial can be retried"
    TRIAL_FAILED = "TrialFailed", "event", "a trial failed for good: the first few, and one for each new message"
    DISRUPTED = "Disrupted", "event", "the cluster ended an attempt; a new one continues from the newest checkpoint"
    STORAGE_AVAILABLE = "StorageAvailable", "event", "the storage answers again"
    NO_PROGRESS = (
        "NoProgress", "event", "a trial has reported nothing for half of `progressDeadline`", "see the trial's log",
    )  # fmt: skip
    WAITING = "Waiting", "event", "no trial can run, once per reason", "`trialpod why` shows the reason"
    STALLED = "Stalled", "event", "the experiment needs help", "as the message says"


def reasons_of(place: Place) -> Iterator[Reason]:
    """Return the reasons that are written in this place, in the order of the table."""
    return (reason for reason in Reason if place in reason.places)


def explain(place: Place) -> str:
    """Return the reasons of a place with their meanings, one a line, for `kubectl explain`."""
    return "".join(f"\n- {reason}: {reason.meaning}." for reason in reasons_of(place))
