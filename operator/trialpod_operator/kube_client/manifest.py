"""Makes a TuneExperiment out of what a `Tuner` was given.

Invariants: a function of its arguments, and of NumPy's global generator where the script seeded it. Everything that
no manifest can say is refused here, all of it at once, each with the argument's name and what to do instead; nothing
is left out silently.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.value_packing import LARGE
from trialpod.protocol.values import ParamsEncoder, opaque_decoder, params_encoder, readable
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.command.command import command_name
from trialpod.tune.plugins.described import arguments_of
from trialpod.tune.plugins.file_parameters import scheduler_with_lines
from trialpod.tune.plugins.goal import own_goal
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers import scheduler_name
from trialpod.tune.search import searcher_name
from trialpod.tune.search.sample import Categorical, Constant, Domain, Float, Integer
from trialpod.tune.search.search_generator import SearchGenerator
from trialpod.tune.search.spaces.variants import grid_values
from trialpod.tune.stopper import CombinedStopper, NoopStopper, Stopper, stopper_name
from trialpod_operator.api.command import manifest_of
from trialpod_operator.api.document import Document
from trialpod_operator.api.search_space import (
    READABLE,
    VALUE,
    called_distribution,
    compile_search_space,
    named_distribution,
)
from trialpod_operator.api.validation import check_document
from trialpod_operator.cluster import names
from trialpod_operator.cluster.json_values import json_safe
from trialpod_operator.decider.code import deciding_parts, functions_in
from trialpod_operator.kube_client.script_draws import draws_from_script, with_generator

Json = dict[str, Any]

MAX_INT = 2**63 - 1
_MANY = 4096  # items of a list from which on it may be stored beside the Trainable
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_HERE = "run it on this machine (backend='local')"
_DEFAULT_LOG_FILES = ("stdout", "stderr")


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What a manifest needs besides what a `Tuner` knows.

    Attributes:
        namespace: of the experiment.
        endpoint: URL of the S3 service as the pods reach it; "" = Amazon's.
        credentials_secret: Secret with the storage's keys, in that namespace; "" = the pods need none.
        image: of the trials; "" = the operator's default.
        template: a PodTemplateSpec for the trials.
        labels: of the experiment, its trials and pods.
        deletion_policy: what becomes of the data when the resource is deleted.
    """

    namespace: str
    endpoint: str = ""
    credentials_secret: str = ""
    image: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    deletion_policy: str = "Retain"


MAX_VALUE_BYTES = 64 * 1024
"""Of one value of the search space that JSON has no form for."""


class _Refusals:
    """Collects what cannot be said in a manifest, and encodes what YAML has no form for."""

    def __init__(self, encoder: ParamsEncoder) -> None:
        self.found: list[str] = []
        self.encoder = encoder

    def add(self, message: str) -> None:
        self.found.append(message)


def resource_name(text: str) -> str:
    """Return the nearest name that an experiment in a cluster can have."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name[: names.MAX_EXPERIMENT_NAME].rstrip("-") or "experiment"


def build_manifest(
    request: ExperimentRequest,
    settings: ClusterSettings,
    pickle_uri: str,
    encoder: ParamsEncoder = params_encoder,
    decider: Mapping[str, str] | None = None,
) -> Json:
    """Return the TuneExperiment for a request.

    Args:
        request: what to run.
        settings: of this cluster.
        pickle_uri: where the Trainable will be.
        encoder: encodes the values of the search space that YAML has no form for.
        decider: "uri" and "sha256" of the deciding code, where `needs_decider` says that it decides.

    Raises:
        InvalidInputError: something in it cannot be run in a cluster.
    """
    refused = _Refusals(encoder)
    _refuse_what_stays_here(request, refused)
    algorithms = request
    if decider is not None:
        algorithms = dataclasses.replace(
            request, search_alg=None, scheduler=None, stop=request.stop if isinstance(request.stop, dict) else None
        )
    spec: Json = {
        "trainable": _trainable(request, pickle_uri),
        "searchSpace": {
            key: _space(value, f"param_space[{key!r}]", refused)
            for key, value in request.param_space.items()
            if decider is None or not functions_in(value)
        },
        "metric": None if request.objectives else request.metric,
        "metrics": [_metric(each) for each in request.objectives],
        "mode": request.mode,
        "numSamples": request.num_samples,
        "maxConcurrentTrials": request.max_concurrent,
        "seed": request.seed,
        "timeBudget": None if request.time_budget_s is None else math.ceil(request.time_budget_s),
        "maxTrialHours": request.max_trial_hours,
        "maxGpuHours": request.max_gpu_hours,
        "repeats": None
        if request.repeats is None
        else {("seedParameter" if key == "seed_parameter" else key): each for key, each in request.repeats.items()},
        "warmStart": request.warm_start,
        "stopWhenNotWorth": request.stop_when_not_worth,
        "algorithm": request.algorithm,
        "scheduler": _scheduler(algorithms, refused),
        "decider": None if decider is None else {"pickle": dict(decider), "code": deciding_parts(request)},
        "checkpoint": _checkpoint(request),
        "failurePolicy": {"maxFailures": request.max_failures, "failFast": request.fail_fast},
        "reusePods": request.reuse or None,
        "storage": _storage(request, settings, refused),
        "image": settings.image or None,
        "resources": _resources(request.bundles[0] if request.bundles else request.resources, refused),
        "workers": _workers(request, refused),
        "template": dict(settings.template) or None,
    }
    spec["searchAlgorithm"], limit = _search_algorithm(algorithms, refused)
    if decider is None and draws_from_script(request):
        spec["searchAlgorithm"] = with_generator(spec["searchAlgorithm"], request.param_space)
    if limit is not None:
        spec["maxConcurrentTrials"] = min(limit, request.max_concurrent or limit)
    spec["stop"], spec["stoppers"] = _stop(algorithms, refused)
    _say_goal_once(spec, request)
    name = request.name
    if len(name) > names.MAX_EXPERIMENT_NAME or not NAME.fullmatch(name):
        refused.add(
            f"RunConfig(name={name!r}): in a cluster a name has lower-case letters, digits and '-', at most "
            f"{names.MAX_EXPERIMENT_NAME} of them; {resource_name(name)!r} would do"
        )
        name = resource_name(name)
    manifest: Json = {
        "apiVersion": names.API_VERSION,
        "kind": names.EXPERIMENT_KIND,
        "metadata": {"name": name, "namespace": settings.namespace},
        "spec": {key: value for key, value in spec.items() if value not in (None, {}, [])},
    }
    if settings.labels:
        manifest["metadata"]["labels"] = dict(settings.labels)
    if not refused.found:
        refused.found = [_as_argument(str(problem)) for problem in check_document(Document(manifest)).problems]
    if refused.found:
        lines = "".join(f"\n  - {message}" for message in refused.found)
        raise InvalidInputError(f"this experiment cannot run in a cluster; nothing was started:{lines}")
    return manifest


def needs_decider(request: ExperimentRequest) -> bool:
    """Return whether something in a request decides by what a manifest has no form for: code of the script."""
    refused = _Refusals(params_encoder)
    _scheduler(request, refused)
    _search_algorithm(request, refused)
    _stop(request, refused)
    return bool(refused.found) or bool(functions_in(request.param_space))


def _say_goal_once(spec: Json, request: ExperimentRequest) -> None:
    """Give metric and mode to the experiment; scripts give them to its scheduler and search algorithm, or to all."""
    if not request.metric or request.objectives:
        spec["mode"] = None  # the search algorithm may have both in its parameters
    if not request.metric and not request.objectives and request.scheduler is not None:
        metric, mode = own_goal(request.scheduler)
        if isinstance(metric, str) and mode in (
            "max",
            "min",
        ):  # else a name that no trial reports would not be an error
            spec["metric"], spec["mode"] = metric, mode
    for part in ("scheduler", "searchAlgorithm"):
        parameters = (spec[part] or {}).get("parameters")
        if not parameters or not spec["metric"]:
            continue
        left = {key: each for key, each in parameters.items() if key not in ("metric", "mode") or each != spec[key]}
        spec[part] = {"name": spec[part]["name"], **({"parameters": left} if left else {})}


def _refuse_what_stays_here(request: ExperimentRequest, refused: _Refusals) -> None:
    for callback in request.callbacks:
        if getattr(callback, "logger_classes", None):
            refused.add(
                f"RunConfig(callbacks=[{type(callback).__name__}(...)]): its loggers write into the trial's "
                "directory, which is in the bucket; use a Callback of your own: it runs in this process"
            )
    if not request.chdir:
        refused.add(
            "TuneConfig(chdir_to_trial_dir=False): in a cluster set the variable RAY_CHDIR_TO_TRIAL_DIR=0 in the "
            "trials' pod template instead"
        )
    if not request.strict_metric:
        refused.add("variable TUNE_DISABLE_STRICT_METRIC_CHECKING: not known in a cluster; unset it")
    if request.resources_fn is not None:
        refused.add(
            "tune.with_resources(resources=<function>): in a cluster all trials of an experiment get the same; give "
            "a dict, or start one experiment for each"
        )
    if not request.resume_unfinished:
        refused.add(
            "Tuner.restore(resume_unfinished=False): an experiment in a cluster resumes all trials that have not "
            "ended; leave it out, or stop single ones: trialpod stop NAME --trial TRIAL"
        )


def ignored(request: ExperimentRequest) -> list[str]:
    """Return what a request asks for that a cluster does in a way of its own; no result depends on it."""
    found = []
    if request.progress_reporter is not None:
        found.append(
            "RunConfig(progress_reporter=...) is not used: `trialpod status NAME --watch` shows the progress"
        )
    if request.trial_name is not None:
        found.append("TuneConfig(trial_name_creator=...) is not used: the operator names trials")
    if request.trial_dirname is not None:
        found.append("TuneConfig(trial_dirname_creator=...) is not used: the operator names directories")
    if request.log_files not in (None, _DEFAULT_LOG_FILES):
        found.append("RunConfig(log_to_file=(...)): the names are not used; each trial's output is in its log.txt")
    if request.command is not None and request.trainable_name != command_name(request.command.command):
        found.append("Command(name=...) is not used: trials are called after the program")
    return [f"in a cluster, {each}" for each in found]


def _as_argument(problem: str) -> str:
    problem = re.sub(r"^spec\.(searchSpace)\b", "param_space", problem)
    return re.sub(r"^spec\.warmStart\b", "warm_start", problem)


def _trainable(request: ExperimentRequest, uri: str) -> Json:
    if request.command is not None:
        return manifest_of(request.command)
    found = {"uri": uri, "sha256": request.trainable.sha256}
    return {"pickle": {**found, "name": request.trainable_name} if request.trainable_name else found}


# -- the search space --


def _space(value: Any, where: str, refused: _Refusals) -> Any:
    """Return a value of the search space in the manifest's form."""
    if isinstance(value, Domain) and value.is_grid():
        value = {"grid_search": grid_values(value)}
    if isinstance(value, Domain):
        return _domain(value, where, refused)
    if not (_has_domain(value) or _is_plain(value)):
        return _typed(value, where, refused)
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"} and isinstance(value["grid_search"], (list, tuple, range)):
            grid = value["grid_search"]
            return {"grid_search": [_space(item, f"{where}[{i}]", refused) for i, item in enumerate(grid)]}
        if len(value) == 1 and _reads_as_distribution(*next(iter(value.items()))):
            if not _has_domain(value):
                return {"literal": plain(value, where, refused.found)}
            key = next(iter(value))
            refused.add(f"{where}: a nested config with the one key {key!r} reads as a distribution; rename it")
        made = {
            key: _space(item, f"{where}[{key!r}]", refused)
            for key, item in value.items()
            if _is_key(key, where, refused)
        }
        if not refused.found and not _has_domain(value) and compile_search_space({"x": made})[1]:
            return {"literal": plain(value, where, refused.found)}  # it looks like a distribution written wrongly
        if not refused.found and _has_domain(value) and compile_search_space({"x": made})[1]:
            refused.add(
                f"{where}: a nested config with the keys {', '.join(value)} reads as a distribution; rename one"
            )
        return made
    if isinstance(value, str) and called_distribution(value) is not None:
        return {"literal": value}
    if isinstance(value, list):
        return [_space(item, f"{where}[{index}]", refused) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        kind = type(value).__name__
        refused.add(f"{where}: a {kind} with distributions in it has no form in a manifest; use a list")
        return None
    return plain(value, where, refused.found)


def _is_plain(value: Any) -> bool:
    """Return whether a value arrives as it is when it has been through JSON and the API server.

    Whole floats do not: the API server makes integers of them.
    """
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        return len(value) < LARGE
    if kind is int:
        return bool(abs(value) <= MAX_INT)
    if kind is float:
        return math.isfinite(value) and not value.is_integer()
    if kind is list:
        return len(value) < _MANY and all(_is_plain(item) for item in value)
    return kind is dict and all(type(key) is str and _is_plain(item) for key, item in value.items())


def _typed(value: Any, where: str, refused: _Refusals) -> Json | None:
    """Return a value with its type, and a readable form of it beside that."""
    try:
        data = refused.encoder.encode_value(value, where)
    except InvalidInputError as error:
        refused.add(str(error))
        return None
    if len(data) > MAX_VALUE_BYTES:
        refused.add(
            f"{where}: {len(data):,} bytes are too many for a manifest; pass it by tune.with_parameters, which "
            "stores it once in the bucket"
        )
        return None
    return {VALUE: base64.b64encode(data).decode(), READABLE: json_safe(readable(opaque_decoder.decode(data)))}


def _reads_as_distribution(key: Any, value: Any) -> bool:
    """Return whether a mapping with this one entry means a distribution in a manifest, or a typo of one."""
    return named_distribution(key, [0, 1] if isinstance(value, Domain) else value) is not None


def _has_domain(value: Any) -> bool:
    if isinstance(value, Domain):
        return True
    if isinstance(value, Mapping):
        return set(value) == {"grid_search"} or any(_has_domain(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_has_domain(item) for item in value)


def _domain(domain: Domain, where: str, refused: _Refusals) -> Any:
    match domain:
        case Constant():
            if not _is_plain(domain.value):
                return _typed(domain.value, where, refused)
            return {"literal": plain(domain.value, where, refused.found)}
        case Categorical():
            return {"choice": [_space(item, f"{where}[{i}]", refused) for i, item in enumerate(domain.categories)]}
        case Float() | Integer():
            return _numeric(domain)
    refused.add(f"{where}: {type(domain).__name__} has no form in a manifest; use the distributions of trialpod.tune")
    return None


def _numeric(domain: Float | Integer) -> Json:
    q = {} if domain.q is None else {"q": domain.q}
    if domain.kind == "normal":
        assert isinstance(domain, Float)
        return {f"{'q' if q else ''}randn": {"mean": domain.mean, "sd": domain.sd, **q}}
    log = domain.kind == "loguniform"
    base = {"base": domain.base} if log and domain.base != 10 else {}
    kind = ("log" if log else "") + ("uniform" if isinstance(domain, Float) else "randint")
    name = f"{'q' if q else ''}{kind}"
    return {name: {"lower": domain.lower, "upper": domain.upper, **q, **base}}


def _is_key(key: Any, where: str, refused: _Refusals) -> bool:
    if isinstance(key, str):
        return True
    refused.add(f"{where}: the key {key!r} is not a string; a manifest has only such keys")
    return False


def plain(value: Any, where: str, refused: list[str]) -> Any:
    """Return a value as JSON has it; what JSON has no form for is added to `refused`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if not isinstance(value, (int, float, list, tuple, Mapping)) and callable(getattr(value, "item", None)):
        value = value.item() if getattr(value, "ndim", 0) == 0 else value  # a number of numpy
    if isinstance(value, int):
        if abs(value) > MAX_INT:
            refused.append(f"{where}: {value} is too large for a manifest; pass it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            refused.append(
                f"{where}: {value} has no form in a manifest; pass the string {str(value)!r} and float() it"
            )
        return value
    if isinstance(value, list):
        return [plain(item, f"{where}[{index}]", refused) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        refused += [f"{where}: the key {key!r} is not a string; a manifest has only such keys" for key in wrong]
        return {str(key): plain(item, f"{where}[{key!r}]", refused) for key, item in value.items()}
    advice = "a list arrives as it is" if isinstance(value, tuple) else "pass its name and make it in the Trainable"
    refused.append(f"{where}: a {type(value).__name__} has no form in a manifest; {advice}")
    return None


# -- algorithms --


def _metric(objective: Objective) -> Json:
    threshold = {} if objective.threshold is None else {"threshold": objective.threshold}
    return {"name": objective.name, "mode": objective.mode, **threshold}


def _scheduler(request: ExperimentRequest, refused: _Refusals) -> Json | None:
    if request.scheduler is None:
        return None
    where = "TuneConfig(scheduler=...)"
    found = _component(request.scheduler, scheduler_name(request.scheduler), where, "trialpod.schedulers", refused)
    return found if found is None else _with_files(found, where, refused)


def _with_files(scheduler: Json, where: str, refused: _Refusals) -> Json:
    """Return a scheduler with the lines of the files of this machine that it names."""
    try:
        return scheduler_with_lines(scheduler)
    except InvalidInputError as error:
        refused.add(f"{where}: {error}")
        return scheduler


def _search_algorithm(request: ExperimentRequest, refused: _Refusals) -> tuple[Json | None, int | None]:
    """Return the search algorithm, and the limit of concurrent trials that came with it."""
    search, limit = request.search_alg, None
    where = "TuneConfig(search_alg=...)"
    if isinstance(search, SearchGenerator):
        search = search.searcher
    if type(search).__name__ == "ConcurrencyLimiter":
        if search.batch:
            refused.add(f"{where}: ConcurrencyLimiter(batch=True) has no form in a manifest; leave batch out")
        search, limit = search.searcher, search.max_concurrent
    if search is None:
        return None, limit
    found = _component(search, searcher_name(search), where, "trialpod.searchers", refused)
    if found is not None and found["name"] in ("random", "variant_generator") and not found.get("parameters"):
        return None, limit
    return found, limit


def _stop(request: ExperimentRequest, refused: _Refusals) -> tuple[Json, list[Json]]:
    stop = request.stop
    if stop is None:
        return {}, []
    if isinstance(stop, dict):
        return {key: plain(value, f"RunConfig(stop)[{key!r}]", refused.found) for key, value in stop.items()}, []
    found: list[Json] = []
    for part in stop if isinstance(stop, list) else [stop]:
        found += _stopper(part, refused)
    return {}, found


def _stopper(part: Any, refused: _Refusals) -> list[Json]:
    where = "RunConfig(stop=...)"
    if isinstance(part, NoopStopper):
        return []
    if isinstance(part, CombinedStopper):
        return [each for inner in part.stoppers for each in _stopper(inner, refused)]
    if not isinstance(part, Stopper):
        refused.add(
            f"{where}: the function {getattr(part, '__qualname__', part)!r} cannot go to a cluster; use a dict such "
            f"as {{'training_iteration': 100}}, a stopper of trialpod.tune.stopper, or return from the Trainable; or "
            f"{_HERE}"
        )
        return []
    found = _component(part, stopper_name(part), where, "trialpod.stoppers", refused)
    return [found] if found is not None else []


def _component(made: Any, name: str | None, where: str, group: str, refused: _Refusals) -> Json | None:
    kind = type(made).__name__
    if name is None:
        refused.add(
            f"{where}: {kind} is a class of your own, and the operator runs nothing of a user's; use one that comes "
            f"with trialpod, or install yours in the operator's image under the entry point {group}; or {_HERE}"
        )
        return None
    arguments = arguments_of(made)
    if arguments is None:
        refused.add(
            f"{where}: nothing shows what this {kind} was made with; give a name and parameters in a manifest"
        )
        return None
    parameters = {
        key: _argument(value, f"{where}: {kind}({key}=...)", refused)
        for key, value in arguments.items()
        if value is not None
    }
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def _argument(value: Any, where: str, refused: _Refusals) -> Any:
    """Return an argument of an algorithm: JSON, with distributions in it as a manifest has them, tuples as lists."""
    if isinstance(value, Domain):
        return _domain(value, where, refused)
    if isinstance(value, Mapping):
        return {str(key): _argument(item, f"{where}[{key!r}]", refused) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_argument(item, f"{where}[{index}]", refused) for index, item in enumerate(value)]
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        refused.add(f"{where}: the function {name} cannot go to a cluster; leave it out, or {_HERE}")
        return None
    if value is None or isinstance(value, (bool, int, float, str)) or callable(getattr(value, "item", None)):
        return plain(value, where, refused.found)
    refused.add(
        f"{where}: a {type(value).__name__} has no form in a manifest; give it by its name, such as "
        f'OptunaSearch(sampler="gp", seed=1), or {_HERE}'
    )
    return None


# -- the rest --


def _checkpoint(request: ExperimentRequest) -> Json:
    rules = request.checkpoint_rules
    found: Json = {"frequency": rules.frequency, "atEnd": rules.at_end}
    if rules.num_to_keep is not None:
        found["numToKeep"] = rules.num_to_keep
    if rules.score_attribute is not None:
        found |= {"scoreAttribute": rules.score_attribute, "scoreOrder": rules.score_order}
    if rules.artifacts:
        found["artifacts"] = True
    return found


def _storage(request: ExperimentRequest, settings: ClusterSettings, refused: _Refusals) -> Json:
    uri = request.storage_uri.rpartition("/")[0]
    if not request.storage_uri:
        refused.add(
            "RunConfig(storage_path=...): in a cluster it has to be a bucket that the pods can reach, such as "
            "s3://tune/experiments; no folder of this machine is seen there (TRIALPOD_STORAGE sets it too)"
        )
    found: Json = {"uri": uri or "s3://missing"}
    if settings.endpoint:
        found["endpoint"] = settings.endpoint
    if settings.credentials_secret:
        found["credentialsSecret"] = settings.credentials_secret
    if settings.deletion_policy != "Retain":
        found["deletionPolicy"] = settings.deletion_policy
    return found


def _workers(request: ExperimentRequest, refused: _Refusals) -> Json | None:
    if not request.bundles:
        return None
    others = request.bundles[1:]
    if any(bundle != others[0] for bundle in others):
        refused.add(
            "tune.with_resources(PlacementGroupFactory): in a cluster the bundles after the first are worker pods, "
            "and all of those get the same; make them equal, or use strategy='STRICT_PACK' for one pod with the sum"
        )
    return {"replicas": len(others), "resources": _resources(others[0], refused)}


def _resources(resources: Mapping[str, float], refused: _Refusals) -> Json:
    found: Json = {}
    for name, amount in resources.items():
        lowered = name.lower()
        if not amount:
            continue
        if lowered == "gpu" or "/" in name:
            if amount != int(amount):
                refused.add(
                    f"tune.with_resources: {name}={amount:g}: Kubernetes hands out whole devices only; give a whole "
                    "number (shares are the cluster's business: MIG, time-slicing)"
                )
            found["gpu" if lowered == "gpu" else name] = math.ceil(amount)
        elif lowered == "cpu":
            found["cpu"] = str(int(amount)) if amount == int(amount) else f"{math.ceil(amount * 1000)}m"
        elif lowered in _NATIVE:
            found[lowered] = math.ceil(amount)
        else:
            refused.add(
                f"tune.with_resources: {name!r} is not a resource of Kubernetes; give its full name, such as "
                f"example.com/{name}"
            )
    return found
