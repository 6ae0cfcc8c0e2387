"""`trialpod run`: an experiment from a manifest, or a script with a `Tuner` in it, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod import variables
from trialpod.cli.command import Command
from trialpod.cli.scripts import run_file, run_module
from trialpod.errors import InvalidInputError

if TYPE_CHECKING:
    from trialpod_operator.api.models import TuneExperiment
    from trialpod_operator.experiment.plan import ExperimentPlan
    from trialpod_operator.local.trial_output import FollowedTrials
    from trialpod_operator.ui.beside import PageBeside

DEFAULT_STORAGE = "trialpod-results"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", nargs="?", default="",
                        help="a TuneExperiment manifest (- for standard input), a script (.py), or with -m a module; "
                        "none: a program stands after --, as in: trialpod run --metric loss -- python train.py "
                        "--lr {lr:loguniform:1e-4:1e-1}")  # fmt: skip
    parser.add_argument("-m", "--module", action="store_true", help="FILE is the name of a module, as for python -m")
    parser.add_argument("args", nargs="*", help="arguments of a script, after --")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="PATH=VALUE",
                        help="change a field of the manifest, e.g. spec.numSamples=10")  # fmt: skip
    parser.add_argument("--name", help="name of the experiment, and of its directory")
    parser.add_argument("--storage", metavar="DIR|URI",
                        help=f"where the experiment is kept: a folder (default: ./{DEFAULT_STORAGE}), or "
                        "s3://bucket/prefix")  # fmt: skip
    parser.add_argument("--max-concurrent", type=_positive, metavar="N", help="at most N trials at once")
    parser.add_argument("--retry-failed", action="store_true", help="retry the failed trials of an earlier run")
    parser.add_argument("--retry-trial", action="append", default=[], metavar="ID",
                        help="retry this failed trial; may be repeated")  # fmt: skip
    parser.add_argument("--from-scratch", action="store_true",
                        help="with --retry-failed or --retry-trial: not from their newest checkpoints")  # fmt: skip
    parser.add_argument("--fresh", action="store_true",
                        help="start over: old results of that name are moved to NAME.1 (or .2, ...)")  # fmt: skip
    parser.add_argument("--metric", metavar="NAME", help="with a program: the printed value to optimise")
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="with a program: whether large or small values are good (default: min)",
    )
    parser.add_argument(
        "--samples", type=_positive, metavar="N", help="with a program: how many trials (default: 10)"
    )
    parser.add_argument("--dry-run", action="store_true",
                        help="with a program or a manifest of one: print the command lines of the first trials, and "
                        "run nothing")  # fmt: skip
    parser.add_argument(
        "--cpus", type=_amount, metavar="N", help="let trials use N CPUs instead of all of the machine"
    )
    parser.add_argument(
        "--gpus", type=_count, metavar="N", help="let trials use N GPUs instead of all of the machine"
    )
    parser.add_argument("--follow", action="append", default=[], metavar="TRIAL",
                        help="show the output of this trial while it runs: its number, its id, or all (the default "
                        "of scripts, and of manifests with -v)")  # fmt: skip
    parser.add_argument("--ui", action="store_true",
                        help="serve the page beside the run and print its link, as `trialpod ui` does; in a "
                        "terminal it stays until Ctrl-C")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object per event, for programs")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the summary")


def run(args: argparse.Namespace) -> int:
    """Run the experiment; return the exit status."""
    retries = args.retry_failed or args.retry_trial
    if args.fresh and retries:
        option = "--retry-failed" if args.retry_failed else "--retry-trial"
        raise InvalidInputError(f"--fresh starts over, so there is nothing for {option}; give one of them")
    if args.from_scratch and not retries:
        raise InvalidInputError(
            "--from-scratch is about failed trials: give --retry-failed too; --fresh starts the experiment over"
        )
    if not args.file and not args.args:
        raise InvalidInputError(
            "there is nothing to run; name a manifest or a script, or write a program after --; `trialpod init` "
            "writes an example"
        )
    if args.file and (args.metric or args.mode or args.samples):
        raise InvalidInputError("--metric, --mode and --samples go with a program after --, not with a file")
    if args.file and (args.module or args.file.endswith(".py")):
        if args.dry_run:
            raise InvalidInputError("--dry-run shows the command lines of a program; a script has none")
        return _run_script(args)
    if args.file and args.args:
        raise InvalidInputError(f"unexpected arguments: {' '.join(args.args)}; a manifest takes none")
    return _run_manifest(args)


def _run_manifest(args: argparse.Namespace) -> int:
    from trialpod_operator.api.loader import load_file, load_manifests
    from trialpod_operator.display.base import write_closing
    from trialpod_operator.display.choose import choose_display
    from trialpod_operator.display.summary import RunCommand, command_ways, exit_status, summarize
    from trialpod_operator.experiment.plan import plan_from_manifest
    from trialpod_operator.experiment.warm_start import EarlierHere
    from trialpod_operator.local.command_line import document_of
    from trialpod_operator.local.experiment_run import RunOptions, run_experiment

    overrides = list(args.sets)
    if args.max_concurrent:
        overrides.append(f"spec.maxConcurrentTrials={args.max_concurrent}")
    if args.file:
        experiments = load_file(args.file, overrides)
    else:
        document = document_of(args.args, metric=args.metric, mode=args.mode, samples=args.samples)
        experiments = load_manifests(json.dumps(document), "the command line", overrides)
    experiment = _named(_the_one(experiments, args.file), args.name)
    _check_kind(experiment, args.file)
    folder = Path.cwd() if args.file in ("", "-") else Path(args.file).resolve().parent
    if args.dry_run:
        return _show_command_lines(experiment, folder)
    if not args.file:
        _check_program(args.args[0], folder)
    directory, storage_uri = _locations(args, experiment)
    command = RunCommand(
        file=args.file,
        name=args.name,
        storage=args.storage,
        sets=tuple(args.sets),
        max_concurrent=args.max_concurrent,
        num_samples=experiment.spec.samples,
        program=() if args.file else tuple(args.args),
        options=tuple(
            word
            for option, value in (("--metric", args.metric), ("--mode", args.mode), ("--samples", args.samples))
            if value
            for word in (option, str(value))
        ),
    )

    def plan(stored: Mapping[str, Any] | None) -> ExperimentPlan:
        earlier = EarlierHere(directory.parent, storage_uri, experiment.name)
        plan = plan_from_manifest(experiment, folder, stored, storage_uri, earlier=earlier)
        if experiment.spec.decider is not None:
            from trialpod_operator.experiment.own_code import with_own_code

            plan = with_own_code(plan, experiment, int(plan.document["seed"]), [str(folder)])
        return plan

    display = choose_display(sys.stdout, json=args.json, verbose=_verbosity(args))
    follow = followed_trials(args, default=_verbosity(args) > 0)
    options = RunOptions(
        cpus=args.cpus,
        gpus=args.gpus,
        retry_errors=_retried(args),
        retry_trials=args.retry_trial,
        retry_failed=True,
        if_exists="fresh" if args.fresh else "resume",
        ways=command_ways(command, "numSamples, the time budgets, maxConcurrentTrials, failurePolicy"),
        follow=follow,
    )
    with _page(args, directory.parent, directory) as page:
        outcome = run_experiment(plan, directory, display, options)
        warn_of_missing(follow)
        write_closing(sys.stdout, "" if args.json else summarize(outcome.view, command))
        if page is not None and not outcome.interrupted:
            page.stay()
    return exit_status(outcome.view, interrupted=outcome.interrupted, uncopied=outcome.uncopied)


def _check_kind(experiment: TuneExperiment, file: str) -> None:
    """Raise InvalidInputError when trials are to be objects of another kind: only a cluster has their controllers."""
    from trialpod_operator.api.loader import display_name

    resource = experiment.spec.trial_resource
    if resource is not None:
        raise InvalidInputError(
            f"{display_name(file) if file else 'the command line'}: spec.trialResource makes each trial a "
            f"{resource.template.get('kind')}, and that needs a cluster: send it there with `trialpod submit "
            f"{file or 'FILE'}`; or add `--set spec.trialResource=null`, and each trial runs here as a process"
        )


def _check_program(program: str, folder: Path) -> None:
    """Raise InvalidInputError when the program of a command line cannot be started, before anything is created."""
    from trialpod.runner.command.process import program_problem

    path = os.pathsep.join((os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)))
    problem = None if "{" in program else program_problem(program, path, str(folder))
    if problem is not None:
        raise InvalidInputError(problem)


@contextlib.contextmanager
def _page(args: argparse.Namespace, root: Path, location: Path) -> Iterator[PageBeside | None]:
    """Print the link of the page, served meanwhile where that was asked for."""
    from trialpod_operator.ui.beside import PageBeside, print_link

    silent = args.json or args.quiet
    if args.ui:
        with PageBeside(root, location, sys.stderr if silent else sys.stdout) as page:
            yield page
        return
    if not silent:
        print_link(str(location), sys.stdout)
    yield None


_SHOWN_TRIALS = 5


def _show_command_lines(experiment: TuneExperiment, folder: Path) -> int:
    """Print what the first trials would run, with parameters drawn at random or from the grid."""
    import random
    import shlex

    from trialpod.tune.command.template import BUILT_IN, render_arguments
    from trialpod.tune.search.spaces.variants import VariantSpace
    from trialpod_operator.api.command import command_of
    from trialpod_operator.api.search_space import compile_search_space

    spec = command_of(experiment.spec.trainable)
    if spec is None:
        raise InvalidInputError("--dry-run shows the command lines of spec.trainable.command; there is none")
    space = VariantSpace(compile_search_space(experiment.spec.search_space)[0])
    rng = random.Random(experiment.spec.seed)
    samples = experiment.spec.samples
    total = _SHOWN_TRIALS if samples < 0 else min(_SHOWN_TRIALS, samples * space.grid_count)
    built_in = {name: f"<{name}>" for name in BUILT_IN}
    print(f"in {folder}:")
    for index in range(total):
        config = space.variant(index % space.grid_count, rng).config
        print(f"  {shlex.join(render_arguments(spec, config, built_in, resumed=False))}")
    return 0


def _run_script(args: argparse.Namespace) -> int:
    from trialpod.storage.registry import local_folder
    from trialpod_operator.display.summary import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED, RunCommand
    from trialpod_operator.local import backend
    from trialpod_operator.local.trial_output import FollowedTrials

    script = Path(args.file)
    if not args.module and not script.is_file():
        from trialpod_operator.api.loader import hint_of_file

        raise InvalidInputError(f"{script} does not exist{hint_of_file(args.file)}")
    if args.sets:
        raise InvalidInputError("--set changes fields of a manifest; a script is changed by its own arguments")
    os.environ[variables.STORAGE] = args.storage or os.environ.get(variables.STORAGE) or DEFAULT_STORAGE
    os.environ.setdefault(variables.WORK_DIR, DEFAULT_STORAGE)
    own_name = args.file.rpartition(".")[2] if args.module else script.stem
    os.environ[variables.RUN_NAME] = args.name or own_name
    os.environ[variables.IF_EXISTS] = "fresh" if args.fresh else "resume"
    if args.max_concurrent:
        os.environ[variables.MAX_CONCURRENT] = str(args.max_concurrent)
    command = RunCommand(
        file=args.file,
        module=args.module,
        name=args.name,
        storage=args.storage,
        max_concurrent=args.max_concurrent,
    )
    state = backend.ScriptRun(
        json=args.json,
        verbose=_verbosity(args) if args.quiet or getattr(args, "verbose", 0) else None,
        command=command,
        cpus=args.cpus,
        gpus=args.gpus,
        follow=FollowedTrials(args.follow) if args.follow else None,
        retry_errors=_retried(args),
        retry_trials=args.retry_trial,
    )
    backend.script_run = state
    root = local_folder(os.environ[variables.STORAGE]) or Path(os.environ[variables.WORK_DIR]).expanduser()
    with _page(args, root, root) as page:
        failed = (run_module if args.module else run_file)(args.file, args.args)
        warn_of_missing(state.follow)
        if failed:
            return EXIT_FAILED
        if not state.statuses:
            print(f"{script} ended without running an experiment: does it call Tuner(...).fit()?", file=sys.stderr)
        elif page is not None and EXIT_INTERRUPTED not in state.statuses:
            page.stay()
    return max(state.statuses, default=EXIT_FINE)


def followed_trials(args: argparse.Namespace, *, default: bool) -> FollowedTrials | None:
    """Return whose output to show; `default` is whether all trials are followed when none is named."""
    from trialpod_operator.local.trial_output import ALL, FollowedTrials

    if args.follow:
        return FollowedTrials(args.follow)
    return FollowedTrials([ALL]) if default and not args.json else None


def warn_of_missing(follow: FollowedTrials | None) -> None:
    """Say which of the named trials did not run."""
    from trialpod_operator.local.trial_output import ALL

    for name in follow.missing if follow is not None else ():
        if name != ALL:
            print(f"--follow {name}: no such trial ran; give its number or its id", file=sys.stderr)


def _named(experiment: TuneExperiment, name: str | None) -> TuneExperiment:
    """Return the experiment under another name, which need not be one that a cluster would take."""
    import msgspec

    from trialpod.tune.config import check_name

    if name is None:
        return experiment
    try:
        check_name("--name", name)
    except InvalidInputError:
        raise InvalidInputError(
            f"--name {name!r}: a name is that of a folder: without slashes and line breaks, not beginning with a dot"
        ) from None
    metadata = msgspec.structs.replace(experiment.metadata, name=name)
    return msgspec.structs.replace(experiment, metadata=metadata)


def _the_one(experiments: list[TuneExperiment], file: str) -> TuneExperiment:
    from trialpod_operator.api.loader import display_name

    if len(experiments) == 1:
        return experiments[0]
    names = ", ".join(experiment.name for experiment in experiments)
    raise InvalidInputError(
        f"{display_name(file)} has {len(experiments)} experiments ({names}); put the one to run into its own file"
        if experiments
        else f"{display_name(file)} has no TuneExperiment in it; `trialpod init` writes one to start from"
    )


def _locations(args: argparse.Namespace, experiment: TuneExperiment) -> tuple[Path, str]:
    """Return the directory to work in, and the URI below which the experiment is kept ("" = only there)."""
    from trialpod.storage.registry import local_folder, normalize_uri

    uri = args.storage or (experiment.spec.storage.uri if experiment.spec.storage else DEFAULT_STORAGE)
    uri = normalize_uri(uri)
    folder = local_folder(uri)
    if folder is None:
        return Path(
            os.environ.get(variables.WORK_DIR) or DEFAULT_STORAGE
        ).expanduser().resolve() / experiment.name, uri.rstrip("/")
    return folder.resolve() / experiment.name, ""


def _verbosity(args: argparse.Namespace) -> int:
    return -1 if args.quiet else int(getattr(args, "verbose", 0) or 0)


def _retried(args: argparse.Namespace) -> str:
    """Return how failed trials are retried, as `RunOptions` has it."""
    if not (args.retry_failed or args.retry_trial):
        return ""
    return "scratch" if args.from_scratch else "resume"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


command = Command("run", "run an experiment on this machine, or resume it", configure, run)
