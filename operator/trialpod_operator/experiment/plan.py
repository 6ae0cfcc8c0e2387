"""What a shell needs to run an experiment, made of a manifest or of what a `Tuner` was given."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import CheckpointRules, StopRule, TrainableRef
from trialpod.protocol.values import params_encoder
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.routes import endpoint_of, region_of
from trialpod.tune.backends import ExperimentRequest, TrialNamer
from trialpod.tune.command.command import command_name
from trialpod.tune.plugins.goal import check_several, own_goal
from trialpod.tune.plugins.objectives import Objective, parse_objectives
from trialpod.tune.result_keys import TRAINING_ITERATION
from trialpod.tune.schedulers import FIFOScheduler, TrialScheduler, create_scheduler
from trialpod.tune.search import SearchAlgorithm, create_searcher, prepare
from trialpod.tune.search.prepare import with_seed
from trialpod.tune.stopper import CombinedStopper, FunctionStopper, Stopper, create_stopper
from trialpod_operator.api import auto
from trialpod_operator.api.command import command_of
from trialpod_operator.api.models import TrainableSpec, TuneExperiment, TuneExperimentSpec
from trialpod_operator.api.problems import InvalidManifestError
from trialpod_operator.api.rules import check_scheduler, nothing_varies
from trialpod_operator.api.search_space import compile_search_space, lookalikes, varies
from trialpod_operator.engine.settings import RepeatRules, Settings
from trialpod_operator.experiment.definition import describe
from trialpod_operator.experiment.warm_start import KEY as WARM_START
from trialpod_operator.experiment.warm_start import Earlier, EarlierHere, learn

DEFAULT_GRACE_S = 10.0
"""How long a trial that is asked to end may take to reach a boundary and save its state."""


@dataclass(frozen=True, kw_only=True)
class RemoteStorage:
    """Where the experiment is kept beside the working directory, and where its trials put their checkpoints.

    `uri` names the experiment's own place ("s3://bucket/prefix/name").
    """

    uri: str
    options: StorageOptions


@dataclass(frozen=True, kw_only=True)
class DecidedElsewhere:
    """A decider decides: the plan's algorithms are stand-ins.

    `code` returns the contents of a packed file (see `trialpod_operator.decider.code`). `read_value` returns bytes of
    a large value's file, by its name, start and length; it raises StorageError. Both may block. `lessons` are
    those of earlier experiments, which the operator has read.
    """

    code: Callable[[], bytes]
    seed: int
    decision_timeout_s: float = 30.0
    suggestion_timeout_s: float = 600.0
    read_value: Callable[[str, int, int], bytes] | None = None
    lessons: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """A validated experiment, ready to run.

    `resources` are those of one trial ("cpu" and "gpu" as counts, "memory" in bytes); `resources_of` computes them
    from a trial's config instead. `opens_values`: this is the user's own process, whose algorithms and functions see
    the user's objects themselves. `encode_params` encodes configs. `document` is what is kept as
    ``experiment.json`` for people and tools.
    """

    settings: Settings
    search: SearchAlgorithm
    scheduler: TrialScheduler
    stopper: Stopper | None
    trainable: TrainableRef
    resources: dict[str, float] = field(default_factory=dict)
    resources_of: Callable[[dict[str, Any]], dict[str, float]] | None = None
    suspend: bool = False
    remote: RemoteStorage | None = None
    document: dict[str, Any] = field(default_factory=dict)
    trial_name: TrialNamer | None = None  # from a script
    trial_dirname: TrialNamer | None = None
    environment: dict[str, str] = field(default_factory=dict)  # of the trials' processes, besides this one's
    log_output: bool = True
    notice: str = ""  # said once, when the experiment starts
    grace_s: float = DEFAULT_GRACE_S
    opens_values: bool = False
    decided: DecidedElsewhere | None = None
    encode_params: Callable[[Any], bytes] = params_encoder.encode

    def resources_for(self, config: dict[str, Any]) -> dict[str, float]:
        """Return what a trial with this config asks for."""
        return self.resources_of(config) if self.resources_of is not None else self.resources


MIN_GRACE_S = 0.2
_SEED_BITS = 32


def choose_seed() -> int:
    """Return a seed for an experiment whose user gave none."""
    return random.SystemRandom().getrandbits(_SEED_BITS)


def plan_from_manifest(
    experiment: TuneExperiment,
    folder: Path,
    stored: Mapping[str, Any] | None,
    storage_uri: str = "",
    trainable: TrainableRef | None = None,
    earlier: Earlier | None = None,
) -> ExperimentPlan:
    """Return the plan for a manifest.

    Args:
        experiment: a valid manifest.
        folder: where the manifest is; its modules can be imported from there.
        stored: what an earlier start stored (``experiment.json``), None at the first.
        storage_uri: the ``s3://`` URI below which the experiment is kept; "" = only in its directory.
        trainable: where the code is, when that is not beside the manifest.
        earlier: the experiments that it may learn from; None reads none.

    Raises:
        InvalidInputError: it can run in a cluster, but not here; or an earlier experiment teaches nothing.
    """
    spec = experiment.spec
    if spec.decider is not None and not spec.decider.named and trainable is None:
        raise InvalidInputError(
            "spec.decider.pickle holds code of a script and runs in a cluster; to run on this machine, run the script"
        )
    seed = spec.seed if spec.seed is not None else (stored or {}).get("seed", None)
    seed = choose_seed() if seed is None else int(seed)
    space, problems = compile_search_space(spec.search_space, started=stored is not None)
    if problems:
        raise InvalidManifestError(experiment.name, problems)
    objectives = objectives_of(spec)
    settings = Settings(
        name=experiment.name,
        trainable_name=_trainable_name(spec.trainable),
        metric=objectives[0].name if objectives else spec.metric,
        mode=objectives[0].mode if objectives else spec.mode or "max",
        objectives=objectives,
        num_samples=spec.samples,
        max_concurrent=spec.max_concurrent_trials,
        time_budget_s=spec.time_budget_seconds,
        progress_deadline_s=spec.progress_deadline_seconds,
        max_trial_hours=spec.max_trial_hours,
        max_gpu_hours=spec.max_gpu_hours,
        plans_budget=_plans_budget(spec),
        stop_when_not_worth=spec.stop_when_not_worth,
        repeats=None
        if spec.repeats is None
        else RepeatRules(top=spec.repeats.top, times=spec.repeats.times, seed_parameter=spec.repeats.seed_parameter),
        max_failures=spec.failure_policy.max_failures,
        fail_fast=spec.failure_policy.fail_fast,
        reuse=spec.reuse_pods,
        stop_rules=[StopRule(key, float(value)) for key, value in spec.stop.items()],
        checkpoint_rules=CheckpointRules(
            frequency=spec.checkpoint.frequency,
            at_end=spec.checkpoint.at_end,
            num_to_keep=spec.checkpoint.num_to_keep,
            score_attribute=spec.checkpoint.score_attribute,
            score_order=spec.checkpoint.score_order,
            artifacts=spec.checkpoint.artifacts,
        ),
    )
    rung = _first_rung(spec.stop, stored) if spec.algorithm else None
    scheduler = _scheduler(spec, seed, rung)
    if stored is None:
        check_several(scheduler, objectives)
        check_scheduler(scheduler, space, settings.metric, settings.mode if settings.metric else spec.mode)
    search = _searcher(spec, space, seed)
    total = search.total
    wanted = None if spec.warm_start is None else msgspec.to_builtins(spec.warm_start)
    learned, about_earlier = learn(search, wanted, stored, earlier)
    return ExperimentPlan(
        settings=settings,
        search=search,
        scheduler=scheduler,
        stopper=_combined([create_stopper(s.name, **s.parameters) for s in spec.stoppers]),
        trainable=trainable or trainable_ref(spec.trainable, folder),
        resources=spec.resource_amounts,
        suspend=spec.suspend,
        grace_s=_grace_s(spec),
        remote=_remote(spec, f"{storage_uri}/{experiment.name}") if storage_uri else None,
        notice=_notice(space, spec.samples, scheduler) or about_earlier,
        document={
            "name": experiment.name,
            "storage": f"{storage_uri}/{experiment.name}" if storage_uri else "",
            "seed": seed,
            "total": total,
            "firstRung": rung,
            "manifest": msgspec.to_builtins(experiment),
            **({} if learned is None else {WARM_START: learned}),
        },
    )


def plan_from_request(
    request: ExperimentRequest, stored: Mapping[str, Any] | None, earlier: Earlier | None = None
) -> ExperimentPlan:
    """Return the plan for what a `Tuner` was given.

    Args:
        request: that.
        stored: as in `plan_from_manifest`.
        earlier: the experiments that it may learn from; None = those beside it.
    """
    seed = request.seed if request.seed is not None else (stored or {}).get("seed", None)
    seed = choose_seed() if seed is None else int(seed)
    definition = describe(request)
    search = (
        auto.prepare_search(request.param_space, request.num_samples, request.metric, request.mode, seed)
        if request.algorithm
        else prepare(
            request.search_alg,
            space=request.param_space,
            num_samples=request.num_samples,
            metric=request.metric,
            mode=request.mode,
            objectives=request.objectives,
            seed=seed,
            chosen_seed=request.seed is not None,
        )
    )
    earlier = earlier or EarlierHere(request.storage_path, request.storage_uri.rpartition("/")[0], request.name)
    learned, about_earlier = learn(search, request.warm_start, stored, earlier)
    rung = _first_rung(request.stop, stored) if request.algorithm else None
    name = str((stored or {}).get("name") or request.name)  # its folder may have been renamed since
    stop = request.stop
    rules = [StopRule(key, float(value)) for key, value in stop.items()] if isinstance(stop, dict) else []
    settings = Settings(
        name=name,
        trainable_name=request.trainable_name,
        metric=request.metric or _own_metric(request),
        mode=request.mode or _own_mode(request) or "max",
        objectives=request.objectives,
        num_samples=request.num_samples,
        max_concurrent=request.max_concurrent,
        time_budget_s=request.time_budget_s,
        max_trial_hours=request.max_trial_hours,
        max_gpu_hours=request.max_gpu_hours,
        plans_budget=_plans_budget(request),
        stop_when_not_worth=request.stop_when_not_worth,
        repeats=None if request.repeats is None else RepeatRules(**request.repeats),
        max_failures=request.max_failures,
        fail_fast=request.fail_fast,
        strict_metric=request.strict_metric,
        reuse=request.reuse,
        stop_rules=rules,
        checkpoint_rules=request.checkpoint_rules,
        from_script=True,
    )
    scheduler = auto.scheduler(rung, seed) if request.algorithm else request.scheduler or FIFOScheduler()
    if stored is None:
        check_several(scheduler, request.objectives)
        check_scheduler(scheduler, request.param_space, request.metric, request.mode)
    return ExperimentPlan(
        settings=settings,
        search=search,
        scheduler=scheduler,
        stopper=_request_stopper(request),
        trainable=request.trainable,
        resources=request.resources,
        resources_of=request.resources_fn,
        trial_name=request.trial_name,
        trial_dirname=request.trial_dirname,
        environment={} if request.chdir else {variables.RAY_CHDIR_TO_TRIAL_DIR: "0"},
        opens_values=True,
        remote=RemoteStorage(uri=request.storage_uri, options=_named_options(request.storage_uri).resolved())
        if request.storage_uri
        else None,
        # A search algorithm may have its own space beside these values.
        notice=_constants(request.param_space)
        or _notice(request.param_space if request.search_alg is None else {}, request.num_samples, scheduler)
        or about_earlier,
        document={
            "name": name,
            "storage": request.storage_uri,
            "seed": seed,
            "total": search.total,
            "firstRung": rung,
            "definition": definition,
            **({} if learned is None else {WARM_START: learned}),
        },
    )


def _own_metric(request: ExperimentRequest) -> str | None:
    """Return the metric that only the scheduler was given: without it the scheduler would never decide."""
    metric = own_goal(request.scheduler)[0] if request.scheduler is not None else None
    return metric if isinstance(metric, str) and not request.objectives else None


def _own_mode(request: ExperimentRequest) -> Literal["max", "min"] | None:
    """Return the mode that only the scheduler or the search algorithm was given."""
    modes = (own_goal(owner)[1] for owner in (request.scheduler, request.search_alg) if owner is not None)
    return next((mode for mode in modes if mode == "max" or mode == "min"), None)


def _constants(space: Mapping[str, Any]) -> str:
    """Return that a script wrote distributions as a manifest does, which are constants in Python; "" when not."""
    found = lookalikes(dict(space))
    if not found:
        return ""
    which = f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0]
    return (
        f"the search space: {which} looks like a distribution and is a constant; write tune.uniform(...) or the like"
    )


def _notice(space: Mapping[str, Any], samples: int, scheduler: TrialScheduler) -> str:
    """Return what the user should know of a search space; "" when there is nothing."""
    inner = getattr(scheduler, "base_scheduler", scheduler)
    if not space or samples in (0, 1) or varies(space) or getattr(inner, "changes_configs", False):
        return ""
    return f"the search space: {nothing_varies(samples)}"


def _grace_s(spec: TuneExperimentSpec) -> float:
    """Return how long a trial that is to end may take over it: what the pod template says, or the default."""
    given = (spec.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if given is None else max(float(given), MIN_GRACE_S)


def _searcher(spec: TuneExperimentSpec, space: dict[str, Any], seed: int) -> SearchAlgorithm:
    if spec.algorithm:
        return auto.prepare_search(space, spec.samples, spec.metric, spec.mode, seed)
    component = spec.search_algorithm
    name, parameters = (component.name, dict(component.parameters)) if component else ("random", {})
    return _prepared(spec, create_searcher(name, **with_seed(parameters, name, seed)), space, seed)


def make_search(spec: TuneExperimentSpec, searcher: object, seed: int) -> SearchAlgorithm:
    """Return a search algorithm of the user's own, ready to search the manifest's space."""
    return _prepared(spec, searcher, compile_search_space(spec.search_space, started=True)[0], seed)


def _prepared(spec: TuneExperimentSpec, searcher: object, space: dict[str, Any], seed: int) -> SearchAlgorithm:
    return prepare(
        searcher,
        space=space,
        num_samples=spec.samples,
        metric=spec.metric,
        mode=spec.mode if spec.metric else None,
        objectives=objectives_of(spec),
        seed=seed,
    )


def objectives_of(spec: TuneExperimentSpec) -> list[Objective]:
    """Return the objectives of a list of metrics; none without one."""
    return parse_objectives(msgspec.to_builtins(spec.metrics)) if spec.metrics else []


def _plans_budget(given: TuneExperimentSpec | ExperimentRequest) -> bool:
    return given.algorithm is not None and not (given.max_trial_hours is None and given.max_gpu_hours is None)


def _first_rung(stop: object, stored: Mapping[str, Any] | None) -> int | None:
    """Return the first rung of ``algorithm: auto``: that of the first start, as stop rules may change later."""
    if stored is not None and "firstRung" in stored:
        rung = stored["firstRung"]
        return None if rung is None else int(rung)
    return auto.first_rung(stop.get(TRAINING_ITERATION) if isinstance(stop, Mapping) else None)


def _scheduler(spec: TuneExperimentSpec, seed: int, rung: int | None) -> TrialScheduler:
    if spec.algorithm:
        return auto.scheduler(rung, seed)
    component = spec.scheduler
    if component is None:
        return FIFOScheduler()
    scheduler = create_scheduler(component.name, **component.parameters)
    if "seed" not in component.parameters:
        try:
            return create_scheduler(component.name, seed=seed, **component.parameters)
        except InvalidInputError:
            return scheduler  # It takes no seed: it makes no random choices.
    return scheduler


def _combined(stoppers: list[Stopper]) -> Stopper | None:
    if not stoppers:
        return None
    return stoppers[0] if len(stoppers) == 1 else CombinedStopper(*stoppers)


def _request_stopper(request: ExperimentRequest) -> Stopper | None:
    stop = request.stop
    if stop is None or isinstance(stop, dict):
        return None
    parts = stop if isinstance(stop, list) else [stop]
    return _combined([part if isinstance(part, Stopper) else FunctionStopper(part) for part in parts])


def _named_options(uri: str) -> StorageOptions:
    """Return the server and region that were named for a URI's bucket."""
    return StorageOptions(endpoint=endpoint_of(uri), region=region_of(uri))


def _remote(spec: TuneExperimentSpec, uri: str) -> RemoteStorage:
    storage = spec.storage
    options = StorageOptions(
        endpoint=(storage.endpoint if storage is not None else "") or endpoint_of(uri),
        region=region_of(uri),
        create_bucket=storage.create_bucket if storage is not None else False,
    )
    return RemoteStorage(uri=uri, options=options.resolved())


def _trainable_name(trainable: TrainableSpec) -> str:
    entrypoint = trainable.entrypoint or (trainable.config_map_ref and trainable.config_map_ref.entrypoint)
    if entrypoint:
        return entrypoint.rpartition(":")[2].rpartition(".")[2]
    if trainable.command:
        return command_name(trainable.command)
    named = trainable.pickle.name if trainable.pickle is not None else None
    return named or trainable.attribute or "trainable"


def trainable_ref(trainable: TrainableSpec, folder: Path) -> TrainableRef:
    """Return where the code of a manifest in a folder is.

    Raises:
        InvalidInputError: it is in a cluster.
    """
    if trainable.config_map_ref is not None:
        raise InvalidInputError(
            "spec.trainable.configMapRef needs a cluster; to run on this machine, put the file beside the manifest "
            "and name it: --set spec.trainable.configMapRef=null "
            f"--set spec.trainable.entrypoint={trainable.config_map_ref.entrypoint}"
        )
    return reference_to(trainable, str(folder))


def reference_to(trainable: TrainableSpec, *path: str) -> TrainableRef:
    """Return what a trial runs: code in the image or below `path`, in the manifest or pickled; or a command."""
    pickle = trainable.pickle
    return TrainableRef(
        entrypoint=trainable.entrypoint,
        source=trainable.source,
        attribute=trainable.attribute,
        pickle=pickle.uri if pickle else None,
        sha256=pickle.sha256 if pickle else None,
        command=command_of(trainable),
        path=list(path),
    )
