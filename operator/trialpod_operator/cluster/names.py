"""Names, labels, variables and paths that the operator, its pods and its users agree on.

Invariants: every name of a child is a function of its parent and a number that the engine gave, so that creating it
twice is found out by the API server, and a new operator finds what an earlier one made.
"""

from __future__ import annotations

GROUP = "trialpod.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
EXPERIMENT_KIND = "TuneExperiment"
EXPERIMENTS = "tuneexperiments"
TRIAL_KIND = "TuneTrial"
TRIALS = "tunetrials"

MAX_EXPERIMENT_NAME = 40
"""So that a pod's name, which has the trial's id and the attempt's number appended, is a valid host name."""

MANAGER = "trialpod"
"""Field manager, and the value of the managed-by label."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
NAME_LABEL = "app.kubernetes.io/name"
TRIAL_POD_NAME = "trialpod-trial"
EXPERIMENT_LABEL = f"{GROUP}/experiment"
TRIAL_ID_LABEL = f"{GROUP}/trial-id"
ATTEMPT_LABEL = f"{GROUP}/attempt"
RANK_LABEL = f"{GROUP}/rank"
"""On the pods of attempts that have several: "0" is the head, which speaks for the attempt."""

OBJECT_LABEL = f"{GROUP}/object"
"""On an object of another kind that runs an attempt, and on the pods of its primary template: the object's name."""

CONTAINER_ANNOTATION = f"{GROUP}/container"
"""On pods: the container that runs the trial, or the decider. Others may be put before it at admission."""

SHARD_LABEL = f"{GROUP}/shard"
"""On TuneTrials and pods: the shard of their experiment, by which the watches of a replica can select."""

OPERATORS_LABEL = f"{GROUP}/operators"
"""On the Leases of operators that share the work: the name of their coordinator's Lease."""

SHARDS_ANNOTATION = f"{GROUP}/shards"
"""On the coordinator's Lease: which operator serves what (`shards.assignment`)."""

UNSERVED_ANNOTATION = f"{GROUP}/unserved-shards"
"""Beside it, where there are any: the shards that no operator serves, each with the time since when."""

JOINED_ANNOTATION = f"{GROUP}/joined"
"""Beside it, until the next map: the uid of the Lease of an operator that has resumed what it served before."""

REPLICA_ANNOTATION = f"{GROUP}/replica"
"""On an operator's own Lease: its address, and what it serves."""

ROLE_LABEL = f"{GROUP}/role"
DECIDER_ROLE = "decider"
"""On the pod that runs a user's own deciding code; it belongs to no trial."""

LOG_KEPT_ANNOTATION = f"{GROUP}/log-kept"
"""On a finished pod that stays: what it printed is in the storage already."""

MADE_FOR_ANNOTATION = f"{GROUP}/made-for"
"""On pods that may be reused: the attempt that they were made for, as `runner_id`. Their labels name the latest."""

TEMPLATE_HASH_ANNOTATION = f"{GROUP}/shape"
"""Digest of the complete pod, but for its trial; a trial reuses a pod only if its own would have the same digest."""

SPEC_ANNOTATION = f"{GROUP}/pod-spec"
"""On each trial pod: a digest of the fields of the manifest that it was made from and that may change."""

STOP_ANNOTATION = f"{GROUP}/stop"
"""On an experiment: all its trials stop. Its value is the generation that is to stop, so that a later change of the
spec (more samples) goes before it; "true" stops every generation."""

RETRY_ANNOTATION = f"{GROUP}/retry"
"""On an experiment: its failed trials are retried, once for each new value (see `annotations`)."""

VERSION_ANNOTATION = f"{GROUP}/version"
PROTOCOL_ANNOTATION = f"{GROUP}/protocol"
IMAGE_ANNOTATION = f"{GROUP}/default-image"
UI_ANNOTATION = f"{GROUP}/ui"
STORAGE_ANNOTATION = f"{GROUP}/default-storage"
REPORTS_ANNOTATION = f"{GROUP}/reports"
GPU_ANNOTATION = f"{GROUP}/gpu-resource"
KINDS_ANNOTATION = f"{GROUP}/trial-kinds"
CREDENTIALS_ANNOTATION = f"{GROUP}/credentials"
"""On the ConfigMap with the certificates, and on the Lease: what the operator is, for clients to compare."""

OWN_KEYS, ALWAYS_SCOPED = "own", "scoped"
"""What `CREDENTIALS_ANNOTATION` says of the keys that pods get (`credentials_fact`)."""

STORAGE_FINALIZER = f"{GROUP}/storage"
"""On an experiment whose stored data is to be deleted with it."""

CONTAINER = "trial"
TOKEN_AUDIENCE = GROUP
TOKEN_SECONDS = 3600
CA_CONFIG_MAP = "trialpod-ca"
CA_KEY = "ca.crt"

IDENTITY_DIR = "/var/run/trialpod"
TOKEN_FILE = f"{IDENTITY_DIR}/token"
CA_FILE = f"{IDENTITY_DIR}/ca.crt"
STORAGE_SECRET_DIR = "/var/run/trialpod-storage"
CODE_DIR = "/var/run/trialpod-code"
RUNTIME_DIR = "/var/run/trialpod-runtime"
"""Where the portable runtime is mounted. Its programs name their loader below it (Dockerfile), so it is one place."""
WORK_DIR = "/trialpod"


def credentials_fact(*, own: bool, always_scoped: bool) -> str:
    """Return what clients learn about the keys that pods get: `OWN_KEYS`, `ALWAYS_SCOPED`, both or neither.

    Args:
        own: what is below the default storage is opened with the operator's own keys.
        always_scoped: pods never mount a Secret with keys.
    """
    return ",".join([*([OWN_KEYS] if own else []), *([ALWAYS_SCOPED] if always_scoped else [])])


def trial_name(experiment: str, trial_id: str) -> str:
    """Return the name of a trial's TuneTrial."""
    return f"{experiment}-{trial_id.replace('_', '-')}"


def pod_name(experiment: str, trial_id: str, attempt: int, rank: int = 0) -> str:
    """Return the name of the pod that was made for an attempt, or of the worker of that rank beside it."""
    name = f"{trial_name(experiment, trial_id)}-{attempt}"
    return f"{name}-w{rank}" if rank else name


def decider_name(experiment: str, number: int) -> str:
    """Return the name of an experiment's decider, of which there is one after the other."""
    return f"{experiment}-decider-{number}"


def runner_id(trial_id: str, attempt: int) -> str:
    """Return the identity with which the pod made for an attempt asks for work."""
    return f"{trial_id}/{attempt}"


def labels(experiment: str, trial_id: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a trial."""
    return {MANAGED_BY_LABEL: MANAGER, EXPERIMENT_LABEL: experiment, TRIAL_ID_LABEL: trial_id}
