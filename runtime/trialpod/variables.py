"""All environment variables of trialpod. `docs/environment-variables.md` is made from this module.

Invariants: no other module has a ``TRIALPOD_`` name as a value; each name that a message or a docstring has is one of
these. The reader of a variable checks its value, and names it in the error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trialpod.errors import InvalidInputError

SCRIPTS = "Scripts and experiments on one machine"
CLUSTER_CLIENT = "Scripts and commands that use a cluster"
STORAGES = "Storage and checkpoints"
TRIALS = "Set for the code of a trial"
PODS = "Set in trial pods by the operator"
OPERATOR = "The operator"
GROUPS = (SCRIPTS, CLUSTER_CLIENT, STORAGES, TRIALS, PODS, OPERATOR)


class Variable(NamedTuple):
    """What is to be known of a variable.

    Attributes:
        name: with the prefix.
        group: one of `GROUPS`.
        about: what it does, in Markdown.
        default: what holds without it, in Markdown.
    """

    name: str
    group: str
    about: str
    default: str


VARIABLES: list[Variable] = []
"""All of them, in the order of the page."""


def _variable(name: str, group: str, about: str, default: str = "") -> str:
    VARIABLES.append(Variable(name, group, about, default))
    return name


RUN_NAME = _variable("TRIALPOD_RUN_NAME", SCRIPTS, "Name of the experiment; overrides `RunConfig(name=...)`", "")
STORAGE = _variable(
    "TRIALPOD_STORAGE",
    SCRIPTS,
    "Folder or URI in which experiments are kept; overrides `RunConfig(storage_path=...)`; read in a cluster too",
    "`~/trialpod-results`",
)
WORK_DIR = _variable(
    "TRIALPOD_WORK_DIR",
    SCRIPTS,
    "Folder for the working copies of experiments that are kept in a bucket; in a pod, the trial's scratch folder",
    "`./trialpod-results` for `trialpod run`, else `~/trialpod-results`; `/trialpod` in a pod",
)
IF_EXISTS = _variable(
    "TRIALPOD_IF_EXISTS",
    SCRIPTS,
    "`resume`, `fresh`, `add` or `error`; overrides `RunConfig(if_exists=...)`; see [edit and run "
    "again](running-again.md)",
    "`resume`",
)
RESUME = _variable("TRIALPOD_RESUME", SCRIPTS, "`1`: continue the experiment of that name", "`0`")
MAX_CONCURRENT = _variable(
    "TRIALPOD_MAX_CONCURRENT", SCRIPTS, "Maximum number of trials that run at once", "no limit but the resources"
)
CALLBACKS = _variable(
    "TRIALPOD_CALLBACKS", SCRIPTS, "Classes of callbacks to add, `module.Class`, with commas between", "none"
)
CPUS = _variable("TRIALPOD_CPUS", SCRIPTS, "CPUs that trials may use", "those of the machine or its cgroup")
GPUS = _variable("TRIALPOD_GPUS", SCRIPTS, "GPUs that trials may use", "those of the machine")
RESOURCES = _variable(
    "TRIALPOD_RESOURCES", SCRIPTS, "Amounts of custom resources on one machine: `license=2,disk=1`", "none"
)
TRIAL_OUTPUT = _variable(
    "TRIALPOD_TRIAL_OUTPUT", SCRIPTS, "`0`: what a script's trials print goes to their `log.txt` only", "`1`"
)
COMPAT = _variable(
    "TRIALPOD_COMPAT",
    SCRIPTS,
    "`ray`: `import ray` finds trialpod where Ray is not installed; `ray!`: also where it is",
    "none",
)
DEBUG = _variable("TRIALPOD_DEBUG", SCRIPTS, "`1`: errors are shown with their tracebacks", "`0`")

BACKEND = _variable(
    "TRIALPOD_BACKEND",
    CLUSTER_CLIENT,
    "Where `Tuner.fit` runs trials: `local`, `kubernetes`, a plug-in's",
    "`local`",
)
NAMESPACE = _variable("TRIALPOD_NAMESPACE", CLUSTER_CLIENT, "Namespace of experiments", "the kubeconfig's")
CONTEXT = _variable("TRIALPOD_CONTEXT", CLUSTER_CLIENT, "Context of the kubeconfig", "its current one")
IMAGE = _variable("TRIALPOD_IMAGE", CLUSTER_CLIENT, "Image of the trials of a script", "the operator's default")
CREDENTIALS_SECRET = _variable(
    "TRIALPOD_CREDENTIALS_SECRET",
    CLUSTER_CLIENT,
    "Secret with the keys of the bucket, in the experiment's namespace; empty: the pods need none",
    "the operator's default",
)
CLUSTER_ENDPOINT = _variable(
    "TRIALPOD_CLUSTER_ENDPOINT",
    CLUSTER_CLIENT,
    "Address of the S3 server, as pods reach it",
    "the address that the script uses, or that of the operator's default storage",
)

CREATE_BUCKET = _variable("TRIALPOD_CREATE_BUCKET", STORAGES, "`1`: create the bucket when it is missing", "`0`")
SCRATCH_DIR = _variable(
    "TRIALPOD_SCRATCH_DIR",
    STORAGES,
    "Folder for local copies of checkpoints, on a disk with room for several",
    "the system's temporary folder",
)
PACK_CHECKPOINTS = _variable(
    "TRIALPOD_PACK_CHECKPOINTS",
    STORAGES,
    "`0`: each changed file of a checkpoint is one whole object of the bucket",
    "`1`: small files share objects, large ones are sent in blocks",
)

ORIG_WORKING_DIR = _variable(
    "TRIALPOD_ORIG_WORKING_DIR", TRIALS, "The folder in which the experiment was started; a trial runs in its own"
)
RANK = _variable("TRIALPOD_RANK", TRIALS, "Rank of this process in a trial of several processes", "`0`")
REPEAT = _variable(
    "TRIALPOD_REPEAT",
    TRIALS,
    "Number of a trial among the repeats of its config, from 1",
    "not set, or `0`: not a repeat",
)
TRIAL_ID = _variable("TRIALPOD_TRIAL_ID", TRIALS, "Id of the trial that a command runs")
TRIAL_NAME = _variable("TRIALPOD_TRIAL_NAME", TRIALS, "Name of the trial that a command runs")
TRIAL_DIR = _variable("TRIALPOD_TRIAL_DIR", TRIALS, "Folder of the trial that a command runs")
CHECKPOINT_DIR = _variable(
    "TRIALPOD_CHECKPOINT_DIR",
    TRIALS,
    "Folder in which a command keeps its checkpoint; it has the last one when the command starts again",
)
RESUMED = _variable("TRIALPOD_RESUMED", TRIALS, "`1`: the command starts from a checkpoint, else `0`")
RUNNER_PID = _variable(
    "TRIALPOD_RUNNER_PID",
    TRIALS,
    "Process to which a command may send SIGUSR1 to say that its checkpoint is complete",
)
REPORT_URL = _variable(
    "TRIALPOD_REPORT_URL", TRIALS, "Where a command reports metrics by HTTP, as `trialpod-report` does"
)
NODE_IP = _variable("TRIALPOD_NODE_IP", TRIALS, "Address of the pod's node", "`127.0.0.1` on one machine")

ADDRESS = _variable("TRIALPOD_ADDRESS", PODS, "Address of the operator's report service")
EXPERIMENT = _variable("TRIALPOD_EXPERIMENT", PODS, "Identity of the experiment")
RUNNER = _variable("TRIALPOD_RUNNER", PODS, "Identity of the pod's runner")
TOKEN_FILE = _variable("TRIALPOD_TOKEN_FILE", PODS, "File with the token for the report service")
CA_FILE = _variable("TRIALPOD_CA_FILE", PODS, "File with the certificate that verifies the operator")
TERMINATION_LOG = _variable(
    "TRIALPOD_TERMINATION_LOG", PODS, "File for the last message of a runner", "`/dev/termination-log`"
)

PACKAGES = _variable(
    "TRIALPOD_PACKAGES", PODS, "Folders with the packages of trialpod, where the image has none; searched last"
)

NAMESPACES = _variable("TRIALPOD_NAMESPACES", OPERATOR, "`watchNamespaces` of the chart, with commas", "all")
OPERATOR_NAMESPACE = _variable("TRIALPOD_OPERATOR_NAMESPACE", OPERATOR, "Its own namespace", "`default`")
SERVICE = _variable("TRIALPOD_SERVICE", OPERATOR, "Name by which pods reach it", "`trialpod-reports.NAMESPACE.svc`")
REPORT_PORT = _variable("TRIALPOD_REPORT_PORT", OPERATOR, "Port of the report service", "`8443`")
PROBE_PORT = _variable("TRIALPOD_PROBE_PORT", OPERATOR, "Port of probes and metrics", "`8080`")
REPLICAS = _variable("TRIALPOD_REPLICAS", OPERATOR, "`replicas`: how many operators share the work", "`1`")
POD_ADDRESS = _variable("TRIALPOD_POD_ADDRESS", OPERATOR, "IP address at which pods reach this operator", "none")
GPU_RESOURCE = _variable("TRIALPOD_GPU_RESOURCE", OPERATOR, "`gpuResource`", "`nvidia.com/gpu`")
LOG_LEVEL = _variable("TRIALPOD_LOG_LEVEL", OPERATOR, "Level of its log", "`INFO`")
DEFAULT_IMAGE = _variable("TRIALPOD_DEFAULT_IMAGE", OPERATOR, "`defaults.image`", "none")
RUNTIME_IMAGE = _variable(
    "TRIALPOD_RUNTIME_IMAGE", OPERATOR, "Image whose runtime commands in other images get: the operator's", "none"
)
TRIAL_KINDS = _variable(
    "TRIALPOD_TRIAL_KINDS", OPERATOR, "`trialKinds` of the chart, as `batch/v1/Job=jobs`, with commas", "none"
)
DEFAULT_STORAGE_URI = _variable("TRIALPOD_DEFAULT_STORAGE_URI", OPERATOR, "`defaults.storage.uri`", "none")
DEFAULT_STORAGE_ENDPOINT = _variable(
    "TRIALPOD_DEFAULT_STORAGE_ENDPOINT", OPERATOR, "`defaults.storage.endpoint`", "the store's public address"
)
DEFAULT_STORAGE_SECRET = _variable(
    "TRIALPOD_DEFAULT_STORAGE_SECRET", OPERATOR, "`defaults.storage.credentialsSecret`", "none"
)
SCOPED_CREDENTIALS = _variable(
    "TRIALPOD_SCOPED_CREDENTIALS",
    OPERATOR,
    "`required`: pods never mount the Secret with keys, whatever manifests say",
    "`allowed`",
)
STS_ROLE_ARN = _variable("TRIALPOD_STS_ROLE_ARN", OPERATOR, "Role of scoped keys where a manifest names none", "none")
STS_DURATION = _variable("TRIALPOD_STS_DURATION", OPERATOR, "Life of scoped keys, 15m to 12h", "`1h`")
STS_ENDPOINT = _variable("TRIALPOD_STS_ENDPOINT", OPERATOR, "Token service of the store", "the store's own address")
STORAGE_KEYS_DIR = _variable(
    "TRIALPOD_STORAGE_KEYS_DIR", OPERATOR, "Folder with the keys of the store that are the operator's own", "none"
)
UI_ADDRESS = _variable(
    "TRIALPOD_UI_ADDRESS", OPERATOR, "Address of the cluster's page, which it tells to users", "none"
)
UI_HOSTS = _variable("TRIALPOD_UI_HOSTS", OPERATOR, "Of the page: names that it answers to, with commas", "loopback")
UI_ACTIONS = _variable(
    "TRIALPOD_UI_ACTIONS", OPERATOR, "Of the page: `true`: users may change what they may", "`false`"
)
UI_SESSION_MINUTES = _variable(
    "TRIALPOD_UI_SESSION_MINUTES", OPERATOR, "Of the page: how long a session lasts, 1 to 1440", "`60`"
)

RAY_ORIG_WORKING_DIR = "TUNE_ORIG_WORKING_DIR"
"""Ray Tune's name for `ORIG_WORKING_DIR`."""
RAY_CHDIR_TO_TRIAL_DIR = "RAY_CHDIR_TO_TRIAL_DIR"
"""With "0", trials stay in the folder in which the experiment was started."""


_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


def is_on(variable: str, text: str) -> bool:
    """Return what the value of a variable that is 1 or 0 means; an empty one is 0.

    Raises:
        InvalidInputError: it is neither.
    """
    lowered = text.strip().lower()
    if lowered not in _YES + _NO:
        raise InvalidInputError(f"variable {variable}={text!r}: must be 1 or 0")
    return lowered in _YES


def is_off(variable: str, text: str) -> bool:
    """Return whether a variable whose default is 1 says 0; an empty one does not.

    Raises:
        InvalidInputError: it is neither.
    """
    return bool(text.strip()) and not is_on(variable, text)


def shows_tracebacks(text: str) -> bool:
    """Return what the value of TRIALPOD_DEBUG means: it is read while an error is shown, so any other value is 1."""
    return text.strip().lower() not in _NO


def read_amount(variable: str, text: str) -> float | None:
    """Return the number in a variable, None if it is empty.

    Raises:
        InvalidInputError: it is none, or negative.
    """
    text = text.strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = -1.0
    if number is not None and not 0 <= number < math.inf:
        raise InvalidInputError(f"variable {variable}={text!r}: must be a number of at least 0")
    return number


def read_amounts(variable: str, text: str) -> dict[str, float]:
    """Return the numbers in a variable by their names: ``license=2,disk=1``.

    Raises:
        InvalidInputError: it has another form.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        number = read_amount(variable, value)
        if not name.strip() or number is None:
            raise InvalidInputError(f"variable {variable}={part!r}: must be name=number, with commas between")
        found[name.strip()] = number
    return found


def reference() -> str:
    """Return the page docs/environment-variables.md."""
    lines = [
        "<!-- Written by tools/make_references from runtime/trialpod/variables.py; changes here are lost. -->",
        "# Environment variables",
        "",
        "A value that cannot be used is refused with the name of the variable. Options override variables.",
        "Server and keys of a bucket come from the usual `AWS_...` variables, see",
        "[storage.md](storage.md#server-and-credentials). The variables of Ray Tune that work here are in",
        "[coming-from-ray.md](coming-from-ray.md#environment-variables).",
    ]
    for group in GROUPS:
        lines += ["", f"## {group}", ""]
        if group == OPERATOR:
            lines += ["The chart sets them from its [values](../charts/trialpod/README.md).", ""]
        lines += ["| variable | what it does | default |", "|---|---|---|"]
        lines += [f"| `{each.name}` | {each.about} | {each.default} |" for each in VARIABLES if each.group == group]
    return "\n".join(lines) + "\n"
