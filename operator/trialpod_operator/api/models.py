"""The TuneExperiment resource as typed models: the one source of the schema, of its documentation and of validation.

Descriptions and bounds live here. Fields are snake_case in Python and camelCase in a manifest. A field whose default
is None can be left out; null itself is never a value of a typed field. What a bound cannot say is in `rules.py`.

Every text, list and mapping of bounded length says so: the API server judges the rules of `cel.py` only when it can
tell beforehand what they may cost. Whole numbers are bounded because JSON's are not.

`extra` of a `Meta` serves validator and schema: `format` names a parser ("duration", "quantity") or a schema of its
own ("pod-template"), `expected` is what a pattern wants, in words; `defaulted: False` keeps a default out of the
schema; `keys: "resources"` has the keys of a mapping checked. `change` says when a field of a spec may change, once
the experiment has started ("any time", "before results"; without it never). `cluster: True` marks what means nothing
on one machine.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from trialpod.tune.plugins.auto import samples_by_default
from trialpod_operator.api import duration, quantity

API_VERSION = "trialpod.dev/v1alpha1"
KIND = "TuneExperiment"

DnsLabel = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        extra={
            "expected": 'lower-case letters, digits and "-", a letter or digit at both ends; at most 63 characters'
        },
    ),
]
DnsSubdomain = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        extra={
            "expected": 'lower-case letters, digits, "-" and ".", with a letter or digit at both ends; '
            "at most 253 characters"
        },
    ),
]
ExperimentName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        extra={
            "expected": 'lower-case letters, digits and "-", a letter or digit at both ends; at most 40 characters, '
            "because the names of its pods begin with it"
        },
    ),
]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
SourceText = Annotated[str, Meta(min_length=1, max_length=262144)]
MAX_INT = 2**31 - 1
MAX_WORKERS = 999
"""Their numbers have to fit into the names of pods."""

MAX_RESOURCES = 10
"""Kinds of resources of a container: more would let the rules of `cel.py` cost more than Kubernetes 1.30 allows."""

LabelKey = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        extra={"expected": "a Kubernetes label key such as team or example.com/team"},
    ),
]
AnnotationKey = Annotated[
    str,
    Meta(  # Kubernetes lower-cases it before it checks it
        max_length=317,
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        extra={"expected": "the key of an annotation such as owner or example.com/owner"},
    ),
]
ResourceName = Annotated[
    str,
    Meta(
        max_length=253,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        extra={"expected": "the name of a resource such as cpu, memory or nvidia.com/gpu"},
    ),
]
LabelValue = Annotated[
    str,
    Meta(
        max_length=63,
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        extra={"expected": 'letters, digits, "-", "_" and ".", with a letter or digit at both ends'},
    ),
]
_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
Entrypoint = Annotated[
    str,
    Meta(
        max_length=512,
        pattern=f"^{_DOTTED}:{_DOTTED}$",
        extra={"expected": '"module:name", such as "train:train_digits"'},
    ),
]
Identifier = Annotated[
    str, Meta(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", extra={"expected": "a Python name"})
]
Duration = Annotated[int | str, Meta(extra={"format": "duration", "expected": duration.EXPECTED})]
Quantity = Annotated[int | str, Meta(extra={"format": "quantity", "expected": quantity.EXPECTED})]
Parameters = dict[str, Any]


class Model(
    msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of all parts of a manifest."""

    server_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that the API server adds or uses; accepted in what `kubectl get -o yaml` printed, and dropped."""


class Metadata(Model, frozen=True, kw_only=True):
    """The usual metadata of a Kubernetes object."""

    server_fields = frozenset(
        {
            "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
            "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
        }
    )  # fmt: skip

    name: Annotated[ExperimentName, Meta(description="Name of the experiment; also of its directory in the storage.")]
    namespace: Annotated[DnsLabel, Meta(description="Namespace of the experiment and its pods.")] | None = None
    labels: Annotated[
        dict[LabelKey, LabelValue], Meta(description="Labels; they are copied to the trials and their pods.")
    ] = {}
    annotations: Annotated[dict[AnnotationKey, str], Meta(description="Annotations of the experiment.")] = {}


class ConfigMapRef(Model, frozen=True, kw_only=True):
    """A Python file in a ConfigMap."""

    name: Annotated[DnsSubdomain, Meta(description="Name of the ConfigMap, in the experiment's namespace.")]
    key: Annotated[
        str,
        Meta(
            description="Key of the file in the ConfigMap, such as train.py.",
            max_length=253,
            pattern=r"^[A-Za-z0-9_.-]+$",
            extra={"expected": "a file name such as train.py"},
        ),
    ]
    entrypoint: Annotated[
        Entrypoint, Meta(description='What to run, as "module:name"; the module is the key without .py.')
    ]


class Pickle(Model, frozen=True, kw_only=True):
    """A Trainable that was pickled where the experiment was submitted. Never loaded outside a trial's pod."""

    uri: Annotated[Text, Meta(description="Where the cloudpickle file is.")]
    sha256: Annotated[
        str,
        Meta(
            description="SHA-256 of that file, in hexadecimal.",
            max_length=64,
            pattern=r"^[0-9a-f]{64}$",
            extra={"expected": "64 lower-case hexadecimal digits"},
        ),
    ]
    name: Annotated[Text, Meta(description="Its name; the names of trials' folders begin with it.")] | None = None


class CommandMetrics(Model, frozen=True, kw_only=True):
    """Where the results of a command come from."""

    format: Annotated[
        Literal["auto", "text", "json", "csv", "none"],
        Meta(
            description="What lines of the output, or of `file`, look like: name=value and name: value (text), JSON "
            "objects (json), either (auto), rows below a header (csv; files only). none = the output is not read. "
            "Default: auto.",
            extra={"defaulted": False},
        ),
    ] = "auto"
    pattern: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1024,
                description="A regular expression of Python for lines of the output, with a named group for each "
                "metric, or the groups name and value.",
            ),
        ]
        | None
    ) = None
    names: Annotated[
        list[Text],
        Meta(
            max_length=256,
            description="With it, only lines with one of these names, spec.metric or one of spec.stop count. "
            "Default: every number with a name.",
        ),
    ] = []
    step: (
        Annotated[
            Text, Meta(description="The value that is the iteration, such as epoch. Default: results are counted.")
        ]
        | None
    ) = None
    file: (
        Annotated[Text, Meta(description="A file of JSON lines, CSV (.csv) or text that the command appends to.")]
        | None
    ) = None
    tensorboard: Annotated[Text, Meta(description="A folder with TensorBoard event files.")] | None = None
    mlflow: Annotated[Text, Meta(description="The folder of an MLflow file store, such as mlruns.")] | None = None
    prometheus: Annotated[Text, Meta(description="URL of metrics in Prometheus' text format.")] | None = None
    interval_seconds: Annotated[
        int,
        Meta(ge=1, le=MAX_INT, description="How often `prometheus` is read. Default: 5.", extra={"defaulted": False}),
    ] = 5


class CommandCheckpoints(Model, frozen=True, kw_only=True):
    """When what a command keeps in the folder TRIALPOD_CHECKPOINT_DIR becomes a checkpoint."""

    ready_file: (
        Annotated[
            Text,
            Meta(description="A file in that folder; each time it is written, the folder is a whole checkpoint."),
        ]
        | None
    ) = None
    settle_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86400,
            description="Without readyFile: the folder is a checkpoint once nothing in it has changed for this time. "
            "Default: 2.",
            extra={"defaulted": False},
        ),
    ] = 2


Argument = Annotated[str, Meta(max_length=32768)]


class TrainableSpec(Model, frozen=True, kw_only=True):
    """What every trial runs: exactly one of entrypoint, source, configMapRef, pickle and command."""

    entrypoint: (
        Annotated[Entrypoint, Meta(description='A function or class in the image, as "module:name".')] | None
    ) = None
    source: Annotated[SourceText, Meta(description="Inline Python.")] | None = None
    attribute: (
        Annotated[
            Identifier,
            Meta(description="With source: which name to run. Default: the only Trainable that the source defines."),
        ]
        | None
    ) = None
    config_map_ref: (
        Annotated[ConfigMapRef, Meta(description="A Python file in a ConfigMap.", extra={"cluster": True})] | None
    ) = None
    pickle: Annotated[Pickle, Meta(description="A pickled Trainable; written by clients, not by hand.")] | None = None
    command: (
        Annotated[
            list[Argument],
            Meta(
                max_length=1024,
                description="A program of any language and its arguments. {lr} is the parameter lr, {optimizer.lr} a "
                "nested one, {dropout=0.1} one with a default, {args} all others as --name=value, {params.json} and "
                "{params.yaml} the path of a file with all; a doubled brace is a brace. No shell reads it.",
            ),
        ]
        | None
    ) = None
    env: Annotated[
        dict[str, Argument],
        Meta(max_length=256, description="With command: environment variables, templates as its arguments."),
    ] = {}
    runtime: (
        Annotated[
            Literal["image", "injected"],
            Meta(
                description="Where trialpod's process comes from. injected: an init container copies it into the "
                "pod, so the image needs nothing of it; a command needs not even Python or a shell. image: the image "
                "has Python and trialpod. Default: injected for any image but the operator's and its default one.",
                extra={"cluster": True},
            ),
        ]
        | None
    ) = None
    resume_args: Annotated[
        list[Argument],
        Meta(max_length=256, description="With command: arguments that follow when it starts from a checkpoint."),
    ] = []
    parameters_file: (
        Annotated[
            Text,
            Meta(description="With command: a file to write the parameters to, JSON or (.yaml) YAML; a template."),
        ]
        | None
    ) = None
    parameter_env_prefix: (
        Annotated[
            Text,
            Meta(description="With command: each parameter is the environment variable PREFIX + NAME too, as HP_LR."),
        ]
        | None
    ) = None
    working_dir: (
        Annotated[
            Text,
            Meta(
                description="With command: where it runs; a template. Default: that of the image, on one machine the "
                "manifest's folder."
            ),
        ]
        | None
    ) = None
    grace_period: (
        Annotated[
            Duration,
            Meta(
                description="With command: from SIGTERM to SIGKILL when a decision ends it, such as 2m. Default: 30s."
            ),
        ]
        | None
    ) = None
    at_horizon: Annotated[
        Literal["continue", "freeze"],
        Meta(
            description="With command: what it does while the scheduler decides: continue, or freeze (SIGSTOP, then "
            "SIGCONT), which wastes nothing but suits no program that talks to other machines. Default: continue.",
            extra={"defaulted": False},
        ),
    ] = "continue"
    metrics_from: Annotated[CommandMetrics, Meta(description="With command: where its results come from.")] = (
        CommandMetrics()
    )
    checkpoint_folder: Annotated[
        CommandCheckpoints,
        Meta(description="With command: when the folder TRIALPOD_CHECKPOINT_DIR becomes a checkpoint."),
    ] = CommandCheckpoints()


class Component(Model, frozen=True, kw_only=True):
    """A named algorithm with its parameters."""

    name: Annotated[Text, Meta(description="Name of the algorithm, as in Ray Tune, or of an installed plug-in.")]
    parameters: Annotated[Parameters, Meta(description="Its arguments, with Ray Tune's names and defaults.")] = {}


class CheckpointSpec(Model, frozen=True, kw_only=True):
    """When trials checkpoint, and which checkpoints are kept."""

    frequency: Annotated[
        int,
        Meta(ge=0, le=MAX_INT, description="Iterations between checkpoints; class Trainables only. 0 = none."),
    ] = 0
    at_end: Annotated[bool, Meta(description="Checkpoint when a trial ends; class Trainables only.")] = False
    num_to_keep: (
        Annotated[int, Meta(ge=1, le=MAX_INT, description="How many checkpoints of a trial to keep. Default: all.")]
        | None
    ) = None
    score_attribute: (
        Annotated[Text, Meta(description="The metric by which checkpoints are kept. Default: the newest.")] | None
    ) = None
    score_order: Annotated[
        Literal["max", "min"],
        Meta(
            description="Whether a large or a small scoreAttribute is good. Default: max.",
            extra={"defaulted": False},  # it says something only beside scoreAttribute
        ),
    ] = "max"
    artifacts: Annotated[
        bool,
        Meta(
            description="Also keep the other files that a trial writes into its directory: they are copied beside "
            "its checkpoints after each checkpoint, every five minutes and at its end. Not possible with scoped "
            "credentials, which open only checkpoints; the trial's log says so then."
        ),
    ] = False


class FailurePolicy(Model, frozen=True, kw_only=True):
    """What happens when a trial fails by its own fault. Disruptions by the cluster never count."""

    max_failures: Annotated[
        int, Meta(ge=-1, le=MAX_INT, description="How often a failed trial is retried. -1 = without limit.")
    ] = 0
    fail_fast: Annotated[bool, Meta(description="End the experiment at the first trial that failed for good.")] = (
        False
    )


class ScopedCredentials(Model, frozen=True, kw_only=True):
    """Short-lived keys for each trial's pod, which open only that trial's checkpoints."""

    role_arn: (
        Annotated[
            Text,
            Meta(
                description="The role of trials' keys, with fewer permissions. Amazon requires one, MinIO has none."
            ),
        ]
        | None
    ) = None
    duration: (
        Annotated[
            Duration,
            Meta(
                description="How long keys are valid, 15m to 12h. A longer time lets trials store checkpoints longer "
                "while no operator answers. Default: 1h."
            ),
        ]
        | None
    ) = None
    sts_endpoint: (
        Annotated[Text, Meta(description="URL of the token service, where it is not the storage's own or Amazon's.")]
        | None
    ) = None

    @property
    def duration_seconds(self) -> float:
        """The duration in seconds."""
        return 3600.0 if self.duration is None else duration.parse_duration(self.duration)


class StorageSpec(Model, frozen=True, kw_only=True):
    """Where checkpoints, results and the experiment's journal go."""

    uri: Annotated[
        Text,
        Meta(description='Parent of the experiment\'s directory: "s3://bucket/prefix", or a folder (local runs).'),
    ]
    endpoint: Annotated[Text, Meta(description='URL of the S3 service, such as "http://minio:9000".')] | None = None
    credentials_secret: (
        Annotated[
            DnsSubdomain,
            Meta(
                description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in the same namespace.",
                extra={"cluster": True},
            ),
        ]
        | None
    ) = None
    scoped_credentials: (
        Annotated[
            ScopedCredentials,
            Meta(
                description="Give pods short-lived keys to their own trial's data, by the store's token service "
                "(STS), instead of mounting the Secret. {} takes the defaults. Default: pods mount the Secret.",
                extra={"cluster": True},
            ),
        ]
        | None
    ) = None
    create_bucket: Annotated[bool, Meta(description="Create the bucket when it is missing.")] = False
    deletion_policy: Annotated[
        Literal["Retain", "Delete"],
        Meta(description="What happens to the stored data when the experiment is deleted.", extra={"cluster": True}),
    ] = "Retain"


class OwnComponent(Model, frozen=True, kw_only=True):
    """An algorithm of the user's own, with its parameters."""

    entrypoint: Annotated[Entrypoint, Meta(description='A class in the image, as "module:name".')]
    parameters: Annotated[Parameters, Meta(description="Its arguments.")] = {}


class DeciderSpec(Model, frozen=True, kw_only=True):
    """A pod that runs deciding code of the user's: either pickle, or search algorithm, scheduler and stoppers."""

    pickle: (
        Annotated[
            Pickle,
            Meta(description="Code of a script, stored when it was submitted. Only the decider unpickles it."),
        ]
        | None
    ) = None
    search_algorithm: (
        Annotated[OwnComponent, Meta(description="A Searcher, in place of spec.searchAlgorithm.")] | None
    ) = None
    scheduler: Annotated[OwnComponent, Meta(description="A TrialScheduler, in place of spec.scheduler.")] | None = (
        None
    )
    stoppers: Annotated[
        list[OwnComponent],
        Meta(max_length=64, description="Stopper classes, or functions (trial_id, result) that say whether to stop."),
    ] = []
    image: (
        Annotated[
            Text,
            Meta(
                description="Image of its container, if that of the trials lacks Python or what the code imports. "
                "Default: that of the trials.",
                extra={"cluster": True},
            ),
        ]
        | None
    ) = None
    code: Annotated[
        list[Text], Meta(max_length=64, description="What the decider decides, in words, for people.")
    ] = []
    resources: Annotated[
        dict[ResourceName, Quantity],
        Meta(
            max_length=MAX_RESOURCES,
            description="Requests and limits of its container. Default: cpu 250m, memory 1Gi.",
            extra={"keys": "resources", "cluster": True},
        ),
    ] = {}
    decision_timeout: (
        Annotated[
            Duration,
            Meta(description="How long one call of scheduler or stopper may take. Default: 30s."),
        ]
        | None
    ) = None
    suggestion_timeout: (
        Annotated[
            Duration,
            Meta(description="How long one call of the search algorithm may take. Default: 10m."),
        ]
        | None
    ) = None

    @property
    def named(self) -> bool:
        """Whether classes are named, and nothing is pickled."""
        return self.pickle is None

    @property
    def decision_timeout_seconds(self) -> float:
        """The time limit of a decision in seconds."""
        return 30.0 if self.decision_timeout is None else duration.parse_duration(self.decision_timeout)

    @property
    def suggestion_timeout_seconds(self) -> float:
        """The time limit of a suggestion in seconds."""
        return 600.0 if self.suggestion_timeout is None else duration.parse_duration(self.suggestion_timeout)


class WorkersSpec(Model, frozen=True, kw_only=True):
    """The pods of a trial beside its first one: ranks 1, 2, ... of a distributed training."""

    replicas: Annotated[
        int,
        Meta(ge=1, le=MAX_WORKERS, description="How many, beside the trial's first pod, which is rank 0."),
    ]
    resources: Annotated[
        dict[ResourceName, Quantity],
        Meta(
            max_length=MAX_RESOURCES,
            description="Requests and limits of each worker's container. They can change at any time. "
            "Default: spec.resources.",
            extra={"keys": "resources"},
        ),
    ] = {}
    start_timeout: (
        Annotated[
            Duration,
            Meta(
                description="How long pods of a trial may wait for the others to run, before all are deleted and "
                "retried later. It can change at any time. Default: 10m."
            ),
        ]
        | None
    ) = None

    @property
    def start_timeout_seconds(self) -> float:
        """The start timeout in seconds."""
        return 600.0 if self.start_timeout is None else duration.parse_duration(self.start_timeout)


class RepeatsSpec(Model, frozen=True, kw_only=True):
    """Repeated runs of the best configs, from the start, before the winner is named."""

    top: Annotated[int, Meta(ge=1, le=100, description="How many of the best trials are repeated.")]
    times: Annotated[int, Meta(ge=1, le=99, description="How often each.")]
    seed_parameter: (
        Annotated[
            Text,
            Meta(
                description="A parameter that repeats get, such as seed, or model/seed inside model: the repeat's "
                "number, from 1, plus the value that the config has, where that is a whole number. Default: only the "
                "variable TRIALPOD_REPEAT differs."
            ),
        ]
        | None
    ) = None


class WarmStartSpec(Model, frozen=True, kw_only=True):
    """Earlier experiments to learn from."""

    experiments: Annotated[
        list[Text],
        Meta(
            max_length=20,
            description="Their names, where they are kept in the storage of this one, or their URIs. One that is not "
            "there or has nothing in common with this one is an error.",
        ),
    ] = []
    auto: Annotated[
        bool,
        Meta(
            description="Learn from all experiments of the namespace that are kept in the storage of this one and "
            "share at least half of its parameters and its metric, 20 of them at most, among the first 200 names. "
            "Where there is none, it starts as without warmStart."
        ),
    ] = False


class MetricSpec(Model, frozen=True, kw_only=True):
    """One of several objectives."""

    name: Annotated[Text, Meta(description="The reported value; nested ones as a/b.")]
    mode: Annotated[Literal["max", "min"], Meta(description="Whether to maximise or minimise it.")]
    threshold: (
        Annotated[
            float,
            Meta(description="The worst acceptable value: a trial that is worse cannot be the best. Default: none."),
        ]
        | None
    ) = None


class TrialResourceSpec(Model, frozen=True, kw_only=True):
    """An object of another kind in place of the trial's pod."""

    template: Annotated[
        dict[str, Any],
        Meta(
            description="The object: apiVersion, kind and spec, such as a Job, JobSet, PyTorchJob or Workflow. "
            "In its texts ${trialParameters.lr} is a parameter, ${trialSpec.Name} the object's name. The trainable "
            "runs in the container of its pod template.",
        ),
    ]
    pod_template_path: (
        Annotated[
            Text,
            Meta(
                description="Where the template of the pod that runs the trial is, such as spec.template or "
                "spec.replicatedJobs[name=leader].template.spec.template. Default: known for the usual kinds."
            ),
        ]
        | None
    ) = None
    primary_container: (
        Annotated[
            DnsLabel,
            Meta(description='The container of that pod that runs the trial. Default: "trial", else the first.'),
        ]
        | None
    ) = None
    success_condition: (
        Annotated[
            Text,
            Meta(
                description="When the object has succeeded: status.conditions[type=Complete].status == True, or "
                'status.phase == "Succeeded"; Katib\'s form is read too. Default: known for the usual kinds.'
            ),
        ]
        | None
    ) = None
    failure_condition: (
        Annotated[Text, Meta(description="When the object has failed, likewise. Default: known for the usual kinds.")]
        | None
    ) = None


class TuneExperimentSpec(Model, frozen=True, kw_only=True):
    """What to tune, and how."""

    trainable: Annotated[
        TrainableSpec, Meta(description="What every trial runs.", extra={"change": "before results"})
    ]
    search_space: Annotated[
        dict[str, Any],
        Meta(
            description="One entry per parameter: a distribution such as {loguniform: [1e-4, 1e-1]} or "
            "{grid_search: [1, 2]}, a nested mapping, or a constant. {literal: ...} keeps a mapping as it is."
        ),
    ] = {}
    metric: Annotated[Text, Meta(description="The reported value to optimise; nested ones as a/b.")] | None = None
    mode: (
        Annotated[Literal["max", "min"], Meta(description="Whether to maximise or minimise. Required with metric.")]
        | None
    ) = None
    metrics: Annotated[
        list[MetricSpec],
        Meta(
            max_length=8,
            description="Several objectives, in place of metric and mode. status.paretoFront has the trials that no "
            "other one dominates; the best is the one of them that is best in the first metric.",
        ),
    ] = []
    num_samples: (
        Annotated[
            int,
            Meta(
                ge=-1,
                le=MAX_INT,
                description="Samples to draw; each is the whole grid where there is one. -1 = without limit. "
                "Default: 1; with algorithm auto and a budget of time or hours: -1.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    max_concurrent_trials: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MAX_INT,
                description="Trials that may run at once. Default: as many as there is room for.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    seed: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=2**32 - 1,
                description="Makes suggestions and decisions repeatable. Default: chosen at start.",
            ),
        ]
        | None
    ) = None
    time_budget: (
        Annotated[
            Duration,
            Meta(
                description="How long the experiment may run, such as 2h, 90m or 1h30m; a number means seconds.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    progress_deadline: (
        Annotated[
            Duration,
            Meta(
                description="Time in which a running trial must report a result or a checkpoint, such as 30m; "
                "otherwise its attempt fails. After half of it there is a warning. Default: no limit.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    max_trial_hours: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=MAX_INT,
                description="End the experiment gracefully when its trials together have run this many hours.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    max_gpu_hours: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=MAX_INT,
                description="End the experiment gracefully when its trials together have used this many GPU hours.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    repeats: (
        Annotated[
            RepeatsSpec,
            Meta(
                description="Run the best configs several times more at the end; the winner has the best mean of "
                "them. Needs a metric; counts in all budgets. Default: none.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    warm_start: (
        Annotated[
            WarmStartSpec,
            Meta(
                description="Earlier experiments, whose best configs are tried first and are a prior as long as it "
                "predicts well. For the search auto. They are read once, before the first start. Default: none."
            ),
        ]
        | None
    ) = None
    stop_when_not_worth: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=MAX_INT,
                description="Start no more trials when the metric is expected to improve by less than this in the "
                "next hour of GPU time (of trial time, where trials have no GPU). Running trials continue to "
                "their next decision. Default: never.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    algorithm: (
        Annotated[
            Literal["auto"],
            Meta(
                description="auto = the scheduler auto and the search auto together, in place of scheduler and "
                "searchAlgorithm; the first rung is a 27th of stop.training_iteration. With maxGpuHours or "
                "maxTrialHours, what the best trial needs to be trained to its end is kept. Needs a metric. Default: "
                "none."
            ),
        ]
        | None
    ) = None
    search_algorithm: (
        Annotated[
            Component,
            Meta(
                description="What proposes trials. Default: random search. points_to_evaluate is a parameter of it."
            ),
        ]
        | None
    ) = None
    scheduler: (
        Annotated[Component, Meta(description="What stops, pauses or changes running trials. Default: fifo.")] | None
    ) = None
    stop: Annotated[
        dict[str, float],
        Meta(max_length=64, description="A trial ends when one of these reported values reaches its number."),
    ] = {}
    stoppers: Annotated[list[Component], Meta(max_length=32, description="More rules that end trials.")] = []
    decider: (
        Annotated[
            DeciderSpec,
            Meta(
                description="Your own deciding code: classes named here, or the code of a script that was run with "
                "TRIALPOD_BACKEND=kubernetes. In a cluster it runs in a pod of its own, on one machine (classes "
                "only) in trialpod's process.",
                extra={"change": "any time"},
            ),
        ]
        | None
    ) = None
    checkpoint: Annotated[CheckpointSpec, Meta(description="When trials checkpoint, and what is kept.")] = (
        CheckpointSpec()
    )
    failure_policy: Annotated[
        FailurePolicy, Meta(description="What happens when a trial fails.", extra={"change": "any time"})
    ] = FailurePolicy()
    reuse_pods: Annotated[
        bool,
        Meta(
            description="Run one trial after the other in the same pod, each in a fresh process (a class with "
            "reset_config: in the same). Not with workers or activeDeadlineSeconds. On one machine: in the same "
            "process."
        ),
    ] = False
    finished_pods: Annotated[
        Literal["Delete", "KeepFailed", "Keep"],
        Meta(
            description="What happens to pods whose attempt has ended, once their logs are in the storage: Delete, "
            "KeepFailed or Keep. Kept pods are deleted with the experiment.",
            extra={"cluster": True, "change": "any time"},
        ),
    ] = "Delete"
    storage: (
        Annotated[
            StorageSpec,
            Meta(description="Where results go. Local default: ./trialpod-results.", extra={"change": "any time"}),
        ]
        | None
    ) = None
    suspend: Annotated[
        bool,
        Meta(description="Checkpoint and pause all trials; false resumes them.", extra={"change": "any time"}),
    ] = False
    ttl_seconds_after_finished: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_INT,
                description="Seconds after its end at which the experiment is deleted.",
                extra={"cluster": True, "change": "any time"},
            ),
        ]
        | None
    ) = None
    image: (
        Annotated[
            Text, Meta(description="Image of the trial's container.", extra={"cluster": True, "change": "any time"})
        ]
        | None
    ) = None
    resources: Annotated[
        dict[ResourceName, Quantity],
        Meta(
            max_length=MAX_RESOURCES,
            description="Requests and limits of the trial's container, both the same, such as {cpu: 2, memory: 4Gi}; "
            "also nvidia.com/gpu.",
            extra={"change": "any time", "keys": "resources"},
        ),
    ] = {}
    template: Annotated[
        dict[str, Any],
        Meta(
            description="A PodTemplateSpec for the trials' pods; image and resources are set on its trial container.",
            extra={"cluster": True, "change": "any time", "format": "pod-template"},
        ),
    ] = {}
    trial_resource: (
        Annotated[
            TrialResourceSpec,
            Meta(
                description="An object of another kind for each attempt of a trial, in place of a pod: a Job, a "
                "JobSet, a PyTorchJob and so on. Not with template, workers and reusePods. Default: none.",
                extra={"cluster": True, "change": "any time"},
            ),
        ]
        | None
    ) = None
    workers: (
        Annotated[
            WorkersSpec,
            Meta(
                description="More pods for each trial, which start together with its first one and run the same "
                "trainable as ranks 1, 2, ...; the trial fails or restarts as a whole. Default: none.",
                extra={"cluster": True},
            ),
        ]
        | None
    ) = None

    @property
    def samples(self) -> int:
        """How many samples to draw, -1 without limit."""
        if self.num_samples is not None:
            return self.num_samples
        return samples_by_default(self.algorithm, (self.time_budget, self.max_trial_hours, self.max_gpu_hours))

    @property
    def time_budget_seconds(self) -> float | None:
        """The time budget in seconds."""
        return None if self.time_budget is None else duration.parse_duration(self.time_budget)

    @property
    def progress_deadline_seconds(self) -> float | None:
        """The progress deadline in seconds."""
        return None if self.progress_deadline is None else duration.parse_duration(self.progress_deadline)

    @property
    def resource_amounts(self) -> dict[str, float]:
        """The resources of all pods of a trial together, in their base units: cores, bytes, devices."""
        amounts = {name: quantity.quantity_to_float(value) for name, value in self.resources.items()}
        if self.workers is not None:
            for name, value in self.worker_resources.items():
                more = self.workers.replicas * quantity.quantity_to_float(value)
                amounts[name] = amounts.get(name, 0.0) + more
        return amounts

    @property
    def worker_resources(self) -> dict[str, int | str]:
        """The resources of one worker pod, as they are written."""
        return (self.workers.resources if self.workers is not None else {}) or self.resources


class TuneExperiment(Model, frozen=True, kw_only=True):
    """One tuning experiment."""

    server_fields = frozenset({"status"})

    api_version: Literal["trialpod.dev/v1alpha1"]
    kind: Literal["TuneExperiment"]
    metadata: Metadata
    spec: TuneExperimentSpec

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.metadata.name
