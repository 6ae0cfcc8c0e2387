"""`trialpod validate`: check manifests without a cluster and without running anything.

Every mistake of every file is shown in one pass. Exit status: 0 all valid, 1 problems, 2 a file or an option that
cannot be used.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, nearest

if TYPE_CHECKING:
    from trialpod.protocol.command import CommandSpec
    from trialpod_operator.api.loader import FileReport
    from trialpod_operator.api.models import TuneExperimentSpec
    from trialpod_operator.api.problems import Problem
    from trialpod_operator.api.validation import Checked

_ATTRIBUTES = {"configMapRef": "config_map_ref"}


def summarize(checked: Checked) -> str:
    """Return one line on a valid experiment: how many trials, and what decides over them."""
    experiment = checked.experiment
    assert experiment is not None
    spec = experiment.spec
    parts = [_trials(spec.samples, checked.grid_size, checked.total)]
    if spec.algorithm is not None:
        parts.append(f"algorithm {spec.algorithm}")
    if spec.search_algorithm is not None:
        parts.append(f"search {spec.search_algorithm.name}")
    if spec.algorithm is None:
        parts.append(f"scheduler {spec.scheduler.name if spec.scheduler else 'fifo'}")
    parts += [f"{each.mode} {each.name}" for each in spec.metrics]
    if spec.metric:
        parts.append(f"{spec.mode} {spec.metric}")
    parts += _limits(spec)
    return f"{experiment.name}: valid: {', '.join(parts)}"


def _trials(samples: int, grid: int, total: int | None) -> str:
    if samples == -1:
        return "trials without limit" + (f" (grid {grid})" if grid > 1 else "")
    plain = samples * grid
    count = plain if total is None else total
    text = f"{count} trial{'s' if count != 1 else ''}"
    if count != plain:
        return f"{text} (with points_to_evaluate)"
    return f"{text} (grid {grid} x {samples} sample{'s' if samples != 1 else ''})" if grid > 1 else text


def _limits(spec: TuneExperimentSpec) -> list[str]:
    limits = []
    if spec.max_concurrent_trials is not None:
        limits.append(f"{spec.max_concurrent_trials} at a time")
    if spec.time_budget is not None:
        budget = spec.time_budget
        limits.append(f"at most {budget if isinstance(budget, str) and not budget.isdigit() else f'{budget}s'}")
    if spec.max_trial_hours is not None:
        limits.append(f"at most {spec.max_trial_hours:g} trial hours")
    if spec.max_gpu_hours is not None:
        limits.append(f"at most {spec.max_gpu_hours:g} GPU hours")
    if spec.suspend:
        limits.append("suspended")
    return limits


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help='a YAML or JSON manifest; "-" is the standard input')
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change a field before the check, such as spec.numSamples=10; may be repeated",
    )
    parser.add_argument(
        "--imports",
        action="store_true",
        help="also load the Trainable, as a trial on this machine would: its module is imported",
    )


def _run(arguments: Namespace) -> int:
    from trialpod_operator.api.loader import check_text, display_name, read_text

    status = 0
    for path in arguments.files:
        try:
            if path.endswith(".py"):
                raise InvalidInputError(
                    f"{path} is a script, not a manifest; a script is checked when it runs: trialpod run {path}"
                )
            report = check_text(read_text(path), display_name(path), arguments.overrides)
        except InvalidInputError as error:
            print(f"trialpod: {error}", file=sys.stderr)
            status = 2
            continue
        folder = Path.cwd() if path == "-" else Path(path).resolve().parent
        hints = _entry_point_hints(report, folder) + _file_hints(report)
        problems = _import_problems(report, folder) if arguments.imports else []
        # What cannot be imported is shown once.
        shown = [] if problems else hints
        report = replace(report, problems=report.problems + problems, warnings=report.warnings + shown)
        if not _show(report):
            status = max(status, 1)
    return status


def _import_problems(report: FileReport, folder: Path) -> list[Problem]:
    """Return why Trainables of valid experiments cannot be loaded here."""
    from trialpod.runner.import_check import problem_of
    from trialpod_operator.api.rules import SOURCES
    from trialpod_operator.experiment.plan import trainable_ref

    found = []
    for checked in report.experiments:
        if checked.experiment is None or checked.problems:
            continue
        trainable = checked.experiment.spec.trainable
        source = next((name for name in SOURCES if getattr(trainable, _ATTRIBUTES.get(name, name))), SOURCES[0])
        where = ("spec", "trainable", source)
        try:
            ref = trainable_ref(trainable, folder)
            problem = problem_of(ref)
            if problem is None and ref.command is not None:
                problem = _program_problem(ref.command, folder)
        except InvalidInputError as error:
            problem = str(error)
        if problem is not None:
            found.append(checked.document.problem(where, problem))
    return found


def _entry_point_hints(report: FileReport, folder: Path) -> list[Problem]:
    """Return what the files beside a manifest tell of its entry points. An image may have other files."""
    found = []
    for checked in report.experiments:
        if checked.experiment is None or checked.experiment.spec.trainable.entrypoint is None:
            continue
        spec = checked.experiment.spec
        hint = _entry_point_hint(
            spec.trainable.entrypoint or "",
            folder,
            None
            if spec.search_algorithm is not None and spec.search_algorithm.parameters
            else spec.search_space or {},
        )
        if hint is not None:
            found.append(checked.document.problem(("spec", "trainable", "entrypoint"), hint))
    return found


def _file_hints(report: FileReport) -> list[Problem]:
    """Return which parameters name files, for those who apply the manifest as it is."""
    from trialpod.tune.plugins.file_parameters import file_parameters

    found = []
    for checked in report.experiments:
        scheduler = checked.experiment.spec.scheduler if checked.experiment is not None else None
        for path, other in [] if scheduler is None else file_parameters(scheduler.name, scheduler.parameters):
            hint = f"trialpod run and submit read the file; for kubectl apply give {other}, its lines, in its place"
            found.append(checked.document.problem(("spec", "scheduler", "parameters", *path), hint))
    return found


def _entry_point_hint(entrypoint: str, folder: Path, space: Mapping[str, Any] | None) -> str | None:
    from trialpod.runner import inline_source

    module, _, name = entrypoint.partition(":")
    path = folder.joinpath(*module.split("."))
    file = path.with_suffix(".py")
    if not file.is_file():
        beside = [each.stem for each in folder.glob("*.py")]
        guess = None if path.is_dir() or "." in module else nearest(module, beside)
        return f"{module}.py is not beside the manifest; did you mean {guess}:{name}?" if guess else None
    source = file.read_text(encoding="utf-8", errors="replace")
    if (mistake := inline_source.syntax_problem(source)) is not None:
        return f"{file.name}, {mistake}"
    names = inline_source.defined_names(source)
    if names is not None and name.partition(".")[0] not in names:
        guess = nearest(name, names)
        return f"{file.name} does not define {name}" + (f"; did you mean {guess}?" if guess else "")
    return None if space is None else inline_source.missing_parameters(source, name, space)


def _program_problem(command: CommandSpec, folder: Path) -> str | None:
    """Return why the program of a command cannot be started here; None also where that depends on the trial."""
    from trialpod.runner.command.process import program_problem

    program = command.command[0]
    if "{" in program or "{" in command.working_dir:
        return None
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)))
    return program_problem(program, path, str(folder / command.working_dir))


def _show(report: FileReport) -> bool:
    """Print what was found in one file; return whether all of it is valid."""
    from trialpod_operator.api.problems import InvalidManifestError

    for warning in report.warnings:
        print(f"{report.source}: warning: {warning}", file=sys.stderr)
    if report.problems:
        print(InvalidManifestError(report.source, report.problems), file=sys.stderr)
        return False
    for checked in report.experiments:
        print(summarize(checked))
    return True


command = Command("validate", "check manifests without running anything", _configure, _run)
