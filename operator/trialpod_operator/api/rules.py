"""The rules of a TuneExperiment that involve more than one field, or the algorithms that it names.

A rule looks only at parts whose form is right, so that one mistake is reported once. Algorithms and search spaces are
checked by making them: the factories' own messages become problems. Nothing of a user's is executed here.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from trialpod.errors import InvalidInputError, nearest
from trialpod.storage.registry import UnknownSchemeError, scheme_of, schemes, storage_class
from trialpod.tune.plugins.auto import samples_by_default
from trialpod.tune.plugins.goal import check_several
from trialpod.tune.plugins.objectives import Objective, parse_objectives
from trialpod_operator.api.auto import prepare_search
from trialpod_operator.api.command import FIELDS, command_of
from trialpod_operator.api.document import Document
from trialpod_operator.api.duration import parse_duration
from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.api.models import TrainableSpec
from trialpod_operator.api.paths import Path
from trialpod_operator.api.problems import Problem
from trialpod_operator.api.quantity import parse_quantity
from trialpod_operator.api.trial_resource.check import check_resource, unknown_pod_fields, used_parameters

SOURCES = ("entrypoint", "source", "configMapRef", "pickle", "command")
OWN_CODE = ("searchAlgorithm", "scheduler", "stoppers")
"""Parts of a decider that name code of the user's."""
MAX_TRIALS_WITHOUT_WARNING = 100_000
_COMMAND_FIELDS = {"metrics": "metricsFrom", "checkpoints": "checkpointFolder"}
"""Parts of a command -> the fields of a manifest."""
HOUR_BUDGETS = ("maxTrialHours", "maxGpuHours")
POD_RESOURCES = ("cpu", "memory", "gpu", "ephemeral-storage")
"""Names of resources without a domain; of Kubernetes' own also hugepages-SIZE."""


@dataclass
class Findings:
    """What the rules found."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    grid_size: int = 1  # trials per sample
    total: int | None = None  # trials in all, where that is known


def _unknown_resource(name: str) -> str:
    close = nearest(name, POD_RESOURCES)
    advice = (
        f"did you mean {close}?" if close else f"known are {', '.join(POD_RESOURCES)}, hugepages-2Mi and the like."
    )
    return f"{name} is not a resource; {advice} Any other has a domain, such as nvidia.com/gpu"


def check_scheduler(scheduler: Any, space: Mapping[str, Any], metric: str | None, mode: str | None) -> None:
    """Refuse an experiment that its scheduler would refuse once it runs.

    Raises:
        InvalidInputError: it needs a metric, or a parameter that the search space does not have.
    """
    inner = getattr(scheduler, "base_scheduler", None)
    check = getattr(scheduler, "check_experiment", None) or getattr(inner, "check_experiment", None)
    if check is not None:
        check(space, metric, mode)


def nothing_varies(samples: int) -> str:
    """Return a warning for an experiment with several samples of a search space that has nothing to sample."""
    return f"nothing varies in it: {'all' if samples < 0 else samples} trials get the same parameters"


def check_rules(
    document: Document, broken: Collection[Path], *, started: bool = False, here: bool = False
) -> Findings:
    """Apply all rules; `broken` are the paths whose form is wrong, `started` and `here` as for `check_document`."""
    rules = _Rules(document, broken, started, here)
    if isinstance(document.value, dict) and isinstance(document.value.get("spec"), dict):
        rules.trainable()
        rules.search_space()
        rules.command()
        rules.metrics()
        rules.goal()
        rules.samples()
        rules.stop()
        rules.budgets()
        rules.algorithm()
        rules.search_algorithm()
        rules.scheduler()
        rules.stoppers()
        rules.decider()
        rules.checkpoint()
        rules.storage()
        rules.resources()
        rules.template()
        rules.trial_resource()
    return rules.findings


class _Rules:
    def __init__(self, document: Document, broken: Collection[Path], started: bool, here: bool) -> None:
        self._started = started
        self._here = here
        self._document = document
        self._broken = broken
        self.findings = Findings()
        self._objectives: list[Objective] = []  # of a list of metrics that is right
        self._space: dict[str, Any] | None = None  # compiled; None when it is wrong

    def _get(self, *path: str | int) -> Any:
        """Return the value at `path` below spec; None when it is absent or anything in it is wrong."""
        full: Path = ("spec", *path)
        if any(each[: len(full)] == full or each == full[: len(each)] for each in self._broken):
            return None
        value = self._document.value
        for part in full:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]  # a position that exists
            else:
                return None
        return value

    def _is_broken(self, *path: str | int) -> bool:
        full: Path = ("spec", *path)
        return any(each[: len(full)] == full for each in self._broken)

    def _has(self, *path: str) -> bool:
        value = self._document.value["spec"]
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    def _report(self, path: Path, message: str) -> None:
        self.findings.problems.append(self._document.problem(("spec", *path), message))

    def _warn(self, path: Path, message: str) -> None:
        self.findings.warnings.append(self._document.problem(("spec", *path), message))

    def trainable(self) -> None:
        given = [source for source in SOURCES if self._has("trainable", source)]
        if not isinstance(self._document.value["spec"].get("trainable"), dict):
            return
        if not given:
            self._report(("trainable",), f"says nothing to run; give one of {', '.join(SOURCES)}")
        for extra in given[1:]:
            self._report(("trainable", extra), f"is given beside {given[0]}; give only one of {', '.join(SOURCES)}")
        if self._has("trainable", "attribute") and "source" not in given:
            self._report(("trainable", "attribute"), "goes only with source; an entrypoint names it after its colon")

        entrypoint = self._get("trainable", "entrypoint")
        module, _, name = entrypoint.partition(":") if isinstance(entrypoint, str) else ("", "", "")
        if module.endswith(".py"):
            written = f"{module.removesuffix('.py').strip('./').replace('/', '.')}:{name}"
            self._report(("trainable", "entrypoint"), f"names a module, not a file: {written}")
        if given == ["source"] and not self._started:
            self._inline_source(self._get("trainable", "source"), self._get("trainable", "attribute"))

    def command(self) -> None:
        for name in FIELDS:
            if self._has("trainable", name) and not self._has("trainable", "command"):
                self._report(("trainable", name), "goes only with command")
        if not isinstance(trainable := self._get("trainable"), dict) or "command" not in trainable:
            return
        from trialpod.tune.command.check import parameter_names, problems

        try:
            spec = command_of(msgspec.convert(trainable, TrainableSpec))
        except (msgspec.ValidationError, InvalidInputError):
            return  # reported already
        if spec is None:
            return
        for problem in problems(
            spec,
            None if self._space is None else parameter_names(self._space),
            used_parameters(self._document.value["spec"].get("trialResource")),
        ):
            first, *rest = filter(None, re.split(r"[.\[\]]+", problem.field))
            path: Path = (
                _COMMAND_FIELDS.get(first, first),
                *(int(part) if part.isdecimal() else part for part in rest),
            )
            if first == "env" and rest:
                path = ("env", problem.field.removeprefix("env."))
            self._report(("trainable", *path), problem.reason)

    def decider(self) -> None:
        if not self._has("decider") or not isinstance(self._document.value["spec"]["decider"], dict):
            return
        own = [name for name in OWN_CODE if self._has("decider", name)]
        if self._has("decider", "pickle"):
            for name in own:
                self._report(("decider", name), "is given beside pickle, whose code decides; remove one of them")
            own = [*OWN_CODE]
        elif not own:
            self._report(("decider",), f"says nothing to decide by; give {', '.join(OWN_CODE)}, or remove it")
        for name in ("searchAlgorithm", "scheduler", "stoppers"):
            if name == "stoppers" and not self._has("decider", "pickle"):
                continue  # both kinds are asked
            if name in own and self._has(name):
                which = f"spec.decider.{'pickle' if self._has('decider', 'pickle') else name}"
                self._report((name,), f"is given beside {which}, which decides in its place; remove one of them")
        if self._has("algorithm"):
            for name in ("searchAlgorithm", "scheduler"):
                if self._has("decider", name):
                    self._report(
                        ("decider", name),
                        "is given beside spec.algorithm, which stands for scheduler and search; remove one of them",
                    )

    def _inline_source(self, source: object, attribute: object) -> None:
        from trialpod.runner import inline_source

        if not isinstance(source, str):
            return
        path = ("trainable", "source")
        if (mistake := inline_source.syntax_problem(source)) is not None:
            if self._has("image"):
                self._warn(path, f"{mistake} (of Python {sys.version_info[0]}.{sys.version_info[1]})")
            else:
                self._report(path, mistake)
            return
        if inline_source.defines_nothing(source):
            self._report(path, "defines neither a function nor a class, so there is nothing to run")
            return
        names = [] if attribute or inline_source.has_class(source) else inline_source.candidates(source)
        if len(names) > 1:
            self._report(
                path,
                f"several functions in it could be the Trainable ({', '.join(names)}); name it in "
                "spec.trainable.attribute",
            )
        chosen = attribute or (names[0] if len(names) == 1 else None)
        space = self._get("searchSpace") if self._has("searchSpace") else {}
        if isinstance(chosen, str) and isinstance(space, dict) and not self._has("searchAlgorithm", "parameters"):
            missing = inline_source.missing_parameters(source, chosen, space)
            if missing is not None:
                self._warn(path, missing)

    def search_space(self) -> None:
        space = {} if not self._has("searchSpace") else self._get("searchSpace")
        if not isinstance(space, dict):
            return
        from trialpod.tune.search.spaces.variants import VariantSpace
        from trialpod_operator.api.search_space import compile_search_space

        compiled, problems = compile_search_space(space, "spec.searchSpace", started=self._started)
        self.findings.problems.extend(self._document.locate(problem) for problem in problems)
        if not problems:
            try:
                self.findings.grid_size = VariantSpace(compiled).grid_count
                self._space = compiled
            except InvalidInputError as error:
                self._report(("searchSpace",), str(error))

    def metrics(self) -> None:
        given = self._get("metrics")
        if not self._has("metrics") or not isinstance(given, list):
            return
        for name in ("metric", "mode"):
            if self._has(name):
                self._report(
                    (name,), "is given beside spec.metrics, which stands for metric and mode; remove one of them"
                )
        if not given:
            self._report(("metrics",), "an empty list names nothing to optimise; list a metric, or leave it out")
            return
        try:
            self._objectives = parse_objectives(given)
        except InvalidInputError as error:
            place, _, message = str(error).partition(": ")
            number, _, name = place.removeprefix("metrics[").partition("]")
            path: Path = ("metrics", int(number)) if number.isdigit() else ("metrics",)
            self._report((*path, name[1:]) if name else path, message)

    def _needs_one(self, path: Path, what: str) -> None:
        """Report what compares trials by one metric where the experiment has none, or a list of them."""
        if self._has("metrics"):
            self._report(path, f"{what} one metric; give spec.metric and spec.mode in place of spec.metrics")
        elif not self._has("metric"):
            self._report(path, f"{what} a metric; set spec.metric and spec.mode")

    def goal(self) -> None:
        metric, mode = self._get("metric"), self._get("mode")
        if metric is not None and not self._has("mode"):
            message = f'is missing: is a large "{metric}" good ("mode: max") or a small one ("mode: min")?'
            line = self._document.line_of(("spec", "metric"))
            self.findings.problems.append(Problem("spec.mode", message, line))
        own = any("metric" in (self._get(part, "parameters") or {}) for part in ("scheduler", "searchAlgorithm"))
        if mode is not None and not self._has("metric") and not own:
            self._report(("mode",), "has no effect without spec.metric; name the metric, or remove it")
        for part in ("scheduler", "searchAlgorithm"):
            parameters = self._get(part, "parameters") or {}
            for name in ("metric", "mode"):
                if name in parameters and self._has(name):
                    message = f"is given at spec.{name} too; keep only that one, it serves scheduler and search alike"
                    self._report((part, "parameters", name), message)

    def samples(self) -> None:
        samples = self._samples()
        if samples == 0:
            self._report(("numSamples",), "0 samples would run nothing; give 1 or more, or -1 for no limit")
        elif samples == -1 and not any(self._has(name) for name in ("timeBudget", *HOUR_BUDGETS)):
            self._warn(("numSamples",), "-1 without a timeBudget: the experiment continues until it is stopped")
        elif (
            isinstance(samples, int)
            and samples > 0
            and samples * self.findings.grid_size > MAX_TRIALS_WITHOUT_WARNING
        ):
            total = samples * self.findings.grid_size
            self._warn(("numSamples",), f"{total} trials (a grid of {self.findings.grid_size} x {samples} samples)")
        elif samples == 1 and self._has("algorithm") and not self._has("numSamples"):
            limits = ", ".join(f"spec.{name}" for name in ("numSamples", "timeBudget", *HOUR_BUDGETS))
            self._warn(
                ("algorithm",), f"compares trials, and without a limit there is only 1 trial; give one of {limits}"
            )
        if isinstance(samples, int) and samples not in (0, 1) and self._space and not self._mutates():
            from trialpod_operator.api.search_space import varies

            if not varies(self._space):
                self._warn(("searchSpace",), nothing_varies(samples))

    def _samples(self) -> Any:
        """Return numSamples as it is given, or its default; None when it is wrong."""
        if self._has("numSamples"):
            return self._get("numSamples")
        budgets = (self._get(name) for name in ("timeBudget", *HOUR_BUDGETS))
        return samples_by_default(self._get("algorithm"), budgets)

    def stop(self) -> None:
        from trialpod.tune.result import AUTOMATIC_METRICS

        stop = self._get("stop")
        for key in stop if isinstance(stop, dict) else ():
            automatic = None if key in AUTOMATIC_METRICS else nearest(key, AUTOMATIC_METRICS)
            if automatic is not None and key != self._get("metric"):
                self._warn(("stop", key), f"is not a value that every result has; did you mean {automatic!r}?")

    def algorithm(self) -> None:
        if self._get("algorithm") is None:
            return
        for name in ("scheduler", "searchAlgorithm"):
            if self._has(name):
                message = (
                    "is given beside spec.algorithm, and algorithm: auto stands for scheduler and searchAlgorithm; "
                    f"remove spec.{name}, or spec.algorithm"
                )
                self._report((name,), message)
        self._needs_one(("algorithm",), "auto compares trials by")
        if not self._has("metric"):
            return
        metric, mode, samples = self._get("metric"), self._get("mode"), self._samples()
        given = self._has("searchAlgorithm")
        if given or self._space is None or metric is None or mode is None or not isinstance(samples, int):
            return  # reported already
        try:
            prepare_search(self._space, samples or 1, metric, mode, 0)
        except InvalidInputError as error:
            self._report(("algorithm",), str(error))

    def _warm_start(self) -> None:
        given = self._get("warmStart")
        if not isinstance(given, dict):
            return  # reported already
        if bool(given.get("experiments")) == bool(given.get("auto")):
            self._report(("warmStart",), "give experiments, a list of at least one, or auto: true")
        search = self._get("searchAlgorithm", "name")
        if not self._has("algorithm") and search != "auto":
            other = f"; {search} learns from one experiment, by its parameter warm_start" if search else ""
            self._report(("warmStart",), f"is advice for the search auto; set spec.algorithm: auto{other}")
        if "warm_start" in (self._get("searchAlgorithm", "parameters") or {}):
            path = ("searchAlgorithm", "parameters", "warm_start")
            self._report(path, "is given beside spec.warmStart; keep only that one")

    def _mutates(self) -> bool:
        """Return whether the scheduler changes parameters, so that those of the start need not differ."""
        parameters = self._get("scheduler", "parameters") or {}
        return any(name in parameters for name in ("hyperparam_mutations", "hyperparam_bounds", "base_scheduler"))

    def budgets(self) -> None:
        for name in HOUR_BUDGETS:
            if self._has(name) and self._get(name) == 0:
                self._report((name,), "a budget is positive; leave the field out for no limit")
        if self._has("repeats"):
            self._needs_one(("repeats",), "compare configs by")
        if self._has("warmStart"):
            self._warm_start()
        if self._has("stopWhenNotWorth"):
            if self._get("stopWhenNotWorth") == 0:
                self._report(("stopWhenNotWorth",), "a threshold is positive; leave the field out for none")
            self._needs_one(("stopWhenNotWorth",), "is an improvement of")
        if self._has("maxGpuHours") and not self._asks_for_gpus():
            others = any(self._has(name) for name in ("numSamples", "timeBudget", "maxTrialHours"))
            if self._get("algorithm") is not None and not others:
                message = (
                    "plans nothing: neither spec.resources nor spec.template asks for GPUs, so the experiment would "
                    "never end; ask for GPUs in spec.resources, or give spec.maxTrialHours instead"
                )
                self._report(("maxGpuHours",), message)
                return
            message = "has no effect: neither spec.resources nor spec.template asks for GPUs"
            self._warn(("maxGpuHours",), message)

    def _asks_for_gpus(self) -> bool:
        asked: list[Any] = [self._get("resources"), self._get("workers", "resources")]
        containers = self._get("template", "spec", "containers")
        for container in containers if isinstance(containers, list) else []:
            resources = container.get("resources") if isinstance(container, dict) else None
            if isinstance(resources, dict):
                asked += [resources.get("requests"), resources.get("limits")]
                asked += [{"gpu": 1}] if resources.get("claims") else []  # of an unknown resource
        names = [name for each in asked if isinstance(each, dict) for name in each]
        return any(isinstance(name, str) and is_gpu(name) for name in names)

    def search_algorithm(self) -> None:
        name = self._get("searchAlgorithm", "name") if self._has("searchAlgorithm") else "random"
        if not isinstance(name, str) or self._has("algorithm"):
            return
        from trialpod.tune.search import create_searcher, prepare
        from trialpod.tune.search.prepare import needs_metric

        searcher = self._make(create_searcher, name, ("searchAlgorithm",))
        if searcher is None or self._space is None or self._misnamed_points():
            return
        if self._has("metrics") and not self._objectives:
            return  # reported already
        if needs_metric(searcher) and not self._has("metric") and not self._objectives:
            message = f"the search algorithm {name} learns from a metric; set spec.metric and spec.mode"
            self._report(("searchAlgorithm", "name"), message)
            return
        metric, mode = self._get("metric"), self._get("mode")
        if (self._has("metric") and metric is None) or (metric is not None and mode is None):
            return  # reported already
        samples = self._samples()
        if isinstance(samples, int) and samples != 0:
            try:
                made = prepare(
                    searcher,
                    space=self._space,
                    num_samples=samples,
                    metric=metric,
                    mode=mode,
                    objectives=self._objectives,
                    seed=0,
                )
                self.findings.total = made.total
            except InvalidInputError as error:
                parameters: Mapping[str, Any] = self._get("searchAlgorithm", "parameters") or {}
                self._report(("searchAlgorithm", *_culprit(error, parameters)), str(error))

    def _misnamed_points(self) -> bool:
        """Report the keys of points_to_evaluate that are not parameters; return whether there are any."""
        points = self._get("searchAlgorithm", "parameters", "points_to_evaluate")
        where: Path = ("searchAlgorithm", "parameters", "points_to_evaluate")
        known = self._space or {}
        found = False
        for index, point in enumerate(points if isinstance(points, list) else []):
            for key in point if isinstance(point, dict) else []:
                if key not in known and key.split("/")[0] not in known:
                    guess = nearest(key, known)
                    advice = f'; did you mean "{guess}"?' if guess else ""
                    self._report((*where, index, key), f"is not in spec.searchSpace{advice}")
                    found = True
        return found

    def scheduler(self) -> None:
        if not isinstance(name := self._get("scheduler", "name"), str):
            return
        from trialpod.tune.schedulers import create_scheduler

        if not self._here and self._names_a_file(name):
            return
        scheduler = self._make(create_scheduler, name, ("scheduler",))
        self._warn_of_two_tuners(scheduler, name)
        if scheduler is None:
            return
        if self._has("metrics"):
            try:
                check_several(scheduler, self._objectives)
            except InvalidInputError as error:
                self._report(("scheduler", "name"), str(error))
            return
        if self._has("metric") or getattr(scheduler, "metric", None):
            self._check_scheduler_of_space(scheduler)
            return
        if getattr(scheduler, "needs_metric", True):
            message = f"the scheduler {name} compares trials by a metric; set spec.metric and spec.mode"
            self._report(("scheduler", "name"), message)

    def _names_a_file(self, name: str) -> bool:
        """Report the scheduler's parameters that name files, which the operator may not open; return if any does."""
        from trialpod.tune.plugins.file_parameters import file_parameters

        found = list(file_parameters(name, self._get("scheduler", "parameters") or {}))
        for path, other in found:
            self._report(
                ("scheduler", "parameters", *path),
                f"names a file, and the operator opens none: give {other}, the lines of the file, in its place "
                f"({other}: [...]); trialpod submit does so by itself",
            )
        return bool(found)

    def _check_scheduler_of_space(self, scheduler: Any) -> None:
        metric, mode = self._get("metric"), self._get("mode")
        goal = metric or getattr(scheduler, "metric", None), mode or getattr(scheduler, "mode", None)
        if self._space is None or None in goal:
            return  # reported already
        try:
            check_scheduler(scheduler, self._space, metric, mode)
        except InvalidInputError as error:
            parameters: Mapping[str, Any] = self._get("scheduler", "parameters") or {}
            self._report(("scheduler", *_culprit(error, parameters)), str(error))

    def _warn_of_two_tuners(self, scheduler: Any, name: str) -> None:
        """Warn when the scheduler changes parameters while a search algorithm learns from what it proposed."""
        search = self._get("searchAlgorithm", "name") if self._has("searchAlgorithm") else None
        scheduler = getattr(scheduler, "base_scheduler", scheduler)
        changes = bool(getattr(scheduler, "changes_configs", False))
        if changes and isinstance(search, str) and _learns(search):
            message = (
                f"{name} changes the parameters of running trials, so {search} would learn from results of others "
                "than it proposed; leave searchAlgorithm out, or use another scheduler"
            )
            self._warn(("searchAlgorithm", "name"), message)

    def stoppers(self) -> None:
        stoppers = self._document.value["spec"].get("stoppers")
        for index in range(len(stoppers) if isinstance(stoppers, list) else 0):
            name = self._get("stoppers", index, "name")
            if isinstance(name, str):
                from trialpod.tune.stopper import create_stopper

                self._make(create_stopper, name, ("stoppers", index))

    def _make(self, create: Callable[..., Any], name: str, path: Path) -> Any:
        """Make the named algorithm; report why it cannot be made, at the parameter that the error is about."""
        if self._is_broken(*path, "parameters"):
            return None
        parameters: Mapping[str, Any] = self._get(*path, "parameters") or {}
        try:
            return create(name, **parameters)
        except Exception as error:  # noqa: BLE001  # a plug-in may raise anything; the user is shown it
            message = str(error) or type(error).__name__
            if not isinstance(error, InvalidInputError):
                message = f"{name} refuses its parameters: {message}"
            self._report((*path, *_culprit(error, parameters)), message)
            return None

    def checkpoint(self) -> None:
        if self._has("checkpoint", "scoreOrder") and not self._has("checkpoint", "scoreAttribute"):
            self._warn(("checkpoint", "scoreOrder"), "has no effect without scoreAttribute")
        if self._has("checkpoint", "scoreAttribute") and not self._has("checkpoint", "numToKeep"):
            self._warn(("checkpoint", "scoreAttribute"), "has no effect without numToKeep: all checkpoints are kept")

    def storage(self) -> None:
        uri = self._get("storage", "uri")
        if not isinstance(uri, str) or not uri.strip():
            return
        found = None
        if uri.startswith(scheme_of(uri)):
            with contextlib.suppress(UnknownSchemeError):
                found = storage_class(uri)
        if found is None:
            installed = schemes()
            guess = nearest(scheme_of(uri), installed)
            advice = f' (did you mean "{guess}://"?)' if guess else ""
            self._report(
                ("storage", "uri"),
                f'"{uri}" is not supported{advice}; use s3://bucket/prefix or a folder, or install a storage for '
                f"{scheme_of(uri)}:// (installed: {', '.join(installed)})",
            )
            return
        if found.is_shared and not _names_a_place(uri):
            self._report(("storage", "uri"), f'"{uri}" names no bucket; write {found.example}')
        else:
            try:
                found.check_uri(uri)
            except InvalidInputError as error:
                self._report(("storage", "uri"), str(error))
        if not found.has_options:
            for name in ("endpoint", "credentialsSecret", "scopedCredentials", "createBucket"):
                given = self._document.value["spec"]["storage"][name] if self._has("storage", name) else None
                if given or given == {}:
                    self._report(("storage", name), f"goes only with an s3:// uri; this one is a folder: {uri}")
        endpoint = self._get("storage", "endpoint")
        if isinstance(endpoint, str) and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", endpoint):
            self._report(("storage", "endpoint"), f'"{endpoint}" is not a URL such as http://minio:9000')
        self._scoped_credentials()

    def _scoped_credentials(self) -> None:
        where = ("storage", "scopedCredentials")
        lasting = self._get(*where, "duration")
        if lasting is not None and not 900 <= parse_duration(lasting) <= 43_200:
            self._report((*where, "duration"), f"{lasting} is not between 15m and 12h, which is what stores allow")
        role, endpoint = self._get(*where, "roleArn"), self._get(*where, "stsEndpoint")
        if isinstance(role, str) and not re.fullmatch(r"arn:[\w-]+:iam::[^:\s]*:role/\S+", role):
            self._report((*where, "roleArn"), f'"{role}" is not like arn:aws:iam::123456789012:role/tuning')
        if isinstance(endpoint, str) and not re.fullmatch(r"https?://[^\s/]+/?", endpoint):
            self._report(
                (*where, "stsEndpoint"), f'"{endpoint}" is not a URL such as https://sts.eu-west-1.amazonaws.com'
            )

    def resources(self) -> None:
        spec = self._document.value["spec"]
        workers = spec.get("workers")
        self._amounts(("resources",), spec.get("resources"))
        if isinstance(workers, dict):
            self._amounts(("workers", "resources"), workers.get("resources"))

    def _amounts(self, path: Path, resources: object) -> None:
        for name in resources if isinstance(resources, dict) else ():
            value = self._get(*path, name)
            if value is None:
                continue
            amount = parse_quantity(value)
            if amount < 0 or str(value).startswith("-"):
                self._report((*path, name), f"{value} is negative")
            elif "/" not in name and name not in POD_RESOURCES and not name.startswith("hugepages-"):
                self._report((*path, name), _unknown_resource(name))
            elif "/" in name and amount.denominator != 1:
                message = f"{value} is not whole: Kubernetes hands out {name} only as whole devices"
                self._report((*path, name), message)

    def template(self) -> None:
        from trialpod_operator.api.pod_fields import unknown_fields
        from trialpod_operator.api.template_rules import check_template

        template = self._get("template")
        if isinstance(template, dict):
            image, resources = self._get("image"), self._get("resources") or {}
            for path, message in check_template(template, image, resources):
                self._report(("template", *path), message)
            for path, message in unknown_fields(template):
                self._warn(("template", *path), message)

    def trial_resource(self) -> None:
        if not self._has("trialResource"):
            return
        for name, value in (("template", {}), ("workers", None), ("reusePods", False)):
            if self._has(name) and self._document.value["spec"][name] != value:
                message = "is given beside spec.trialResource, whose object makes the pods; remove one of them"
                self._report((name,), message)
        resource = self._get("trialResource")
        if not isinstance(resource, dict):
            return
        from trialpod.tune.command.check import parameter_names

        names = None if self._space is None else parameter_names(self._space)
        image, amounts = self._get("image"), self._get("resources") or {}
        for path, message in check_resource(resource, names, image, amounts):
            self._report(("trialResource", *path), message)
        for path, message in unknown_pod_fields(resource):
            self._warn(("trialResource", *path), message)


def _names_a_place(uri: str) -> bool:
    try:
        return bool(urlsplit(uri).netloc)
    except ValueError:  # a bracket, which is kept for addresses of IPv6
        return False


def _learns(search: str) -> bool:
    from trialpod.tune.plugins.catalogue import SEARCHERS

    try:
        return bool(getattr(SEARCHERS.find(search), "learns", True))
    except InvalidInputError:
        return True  # reported already


def _culprit(error: Exception, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where below a component the mistake is: the parameter that the error is about, else its name."""
    found: list[str] = []
    value: Any = parameters
    for part in error.parameter if isinstance(error, InvalidInputError) else ():
        if not isinstance(value, Mapping) or part not in value:
            break
        found.append(part)
        value = value[part]
    return ("parameters", *found) if found else ("name",)
