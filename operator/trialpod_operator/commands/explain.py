"""`trialpod explain TRIAL [DIR|URI|NAME]`: why a trial was stopped, paused, retried or reset."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.commands import target
from trialpod_operator.display.json_lines import strict
from trialpod_operator.display.words import duration, one_line, plural

if TYPE_CHECKING:
    from trialpod_operator.engine.choices import Decision
    from trialpod_operator.engine.trial import Trial
    from trialpod_operator.kube_client.client import Experiments
    from trialpod_operator.view.reading import ReadExperiment

Json = dict[str, Any]

MAX_NAMES = 8


def newest_experiment() -> str:
    """Return the newest experiment in the working directory or ./trialpod-results.

    Raises:
        InvalidInputError: there is none.
    """
    from trialpod_operator.view.reading import is_experiment

    root = Path(target.LOCAL_FOLDER)
    candidates = [Path(), *(sorted(root.iterdir()) if root.is_dir() else [])]
    found = [path for path in candidates if is_experiment(path)]
    if not found:
        raise InvalidInputError("there is no experiment in ./trialpod-results; give its directory or URI")
    return str(max(found, key=lambda path: path.stat().st_mtime))


def find(experiment: ReadExperiment, asked: str) -> Trial:
    """Return the selected trial: by id, name, the number of its id, or what only one of them begins with.

    A number goes before a beginning: "3" is trial 3, also where ids begin with a 3.

    Raises:
        InvalidInputError: there is none, or more than one.
    """
    trials = experiment.engine.state.trials
    if asked in trials:
        return trials[asked]
    names = {experiment.trial_name(trial): trial for trial in trials.values()}
    if asked in names:
        return names[asked]
    if asked.isdecimal():
        for trial_id, trial in trials.items():
            number = trial_id.rpartition("_")[2]
            if number.isdecimal() and int(number) == int(asked):
                return trial
    known = {**trials, **names}
    matches = {trial.trial_id: trial for name, trial in known.items() if name.startswith(asked)}
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches:
        shown = ", ".join(list(matches)[:MAX_NAMES]) + (", ..." if len(matches) > MAX_NAMES else "")
        raise InvalidInputError(f"{plural(len(matches), 'trial')} begin with '{asked}': {shown}; give more of it")
    close = nearest(asked, known)
    hint = f"; did you mean '{close}'?" if close else ""
    shown = ", ".join(list(trials)[:MAX_NAMES]) + (", ..." if len(trials) > MAX_NAMES else "")
    raise InvalidInputError(
        f"there is no trial '{asked}' in {experiment.location}{hint} (there are: {shown or 'none'})"
    )


def standing(trial: Trial, experiment: ReadExperiment) -> str:
    """Return what has become of the trial, in one line."""
    settings = experiment.engine.state.required_settings
    value = f", {settings.metric}={trial.value:.4g}" if settings.metric and trial.value is not None else ""
    spent = duration(trial.run_time_s)
    after = f"after {plural(trial.iteration, 'iteration')} in {plural(trial.attempt, 'attempt')} ({spent}{value})"
    match trial.status:
        case "TERMINATED" if not trial.stop_reason:
            return f"ended by itself {after}"
        case "TERMINATED":
            return f"was stopped {after}"
        case "ERROR":
            return f"failed {after}: {trial.error}"
        case "PAUSED":
            return f"is paused {after}"
        case "RUNNING":
            return f"is running, {after}"
    return f"is waiting to {'resume' if trial.attempt else 'start'}, {after}" if trial.attempt else "has not started"


def text(trial: Trial, experiment: ReadExperiment, decisions: list[Decision]) -> str:
    """Return the lines for a person."""
    from trialpod_operator.engine.reasons import sentence

    name = experiment.trial_name(trial)
    lines = [one_line(f"{trial.trial_id} ({name}) {standing(trial, experiment)}")]
    left_out = trial.decision_count - len(decisions)
    for number, decision in enumerate(decisions):
        if number == 1 and left_out:
            lines.append(f"  ... {plural(left_out, 'decision')} between are no longer kept")
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.time))
        lines.append(one_line(f"{when}  attempt {decision.attempt} was {sentence(decision)}"))
    lines[1:] = [f"  {line.strip()}" for line in lines[1:]]
    if not decisions:
        lines.append("  nothing was decided about it")
    return "\n".join(lines)


def data(trial: Trial, experiment: ReadExperiment, decisions: list[Decision]) -> dict[str, Any]:
    """Return the same for `--json`."""
    from trialpod_operator.engine.reasons import sentence

    return {
        "trial_id": trial.trial_id,
        "name": experiment.trial_name(trial),
        "status": trial.status,
        "attempts": trial.attempt,
        "iteration": trial.iteration,
        "stop_reason": trial.stop_reason,
        "decided": trial.decision_count,
        "decisions": [{**msgspec.structs.asdict(decision), "sentence": sentence(decision)} for decision in decisions],
    }


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "trial", metavar="TRIAL", help="a trial's number, id or name, or the beginning of an id or a name"
    )
    parser.add_argument(
        "location",
        metavar="DIR|URI|NAME",
        nargs="?",
        help="the experiment's directory, or s3://bucket/prefix/name, or its name in a cluster (default: the newest "
        "in ./trialpod-results)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Print what was decided and why."""
    from trialpod_operator.view.reading import reading

    if options.location is None and target.is_in_cluster(options):
        raise InvalidInputError(
            f"explain {options.trial}: name the experiment too: trialpod explain {options.trial} NAME"
        )
    if options.location is None:
        _refuse_experiment(options.trial)
    location = newest_experiment() if options.location is None else target.location(options.location, options)
    if location is not None:
        with reading(location) as experiment:
            return show(experiment, options.trial, options)
    with (
        target.stored_experiment(options.location, options) as (api, item, uri, storage),
        reading(uri, storage) as experiment,
    ):
        return show(experiment, _trial_id(api, item, options.trial), options)


def _refuse_experiment(asked: str) -> None:
    """Raise InvalidInputError if what stands for the trial is an experiment here, and no trial is named."""
    from trialpod_operator.view.reading import is_experiment

    if any(is_experiment(Path(folder, asked)) for folder in (".", target.LOCAL_FOLDER)):
        raise InvalidInputError(f"{asked} is an experiment; name one of its trials first: trialpod explain 0 {asked}")


def _trial_id(api: Experiments, item: Json, asked: str) -> str:
    """Return the id of a trial that is named by its TuneTrial, else what was asked."""
    if not asked.startswith(f"{item['metadata']['name']}-"):
        return asked
    trial = api.find_trial(asked)
    return asked if trial is None else str(trial["spec"].get("trialId") or asked)


def show(experiment: ReadExperiment, asked: str, options: argparse.Namespace) -> int:
    """Print what was decided about a trial of this experiment; return the exit status."""
    trial = find(experiment, asked)
    kept = trial.decisions
    if options.json:
        print(json.dumps(strict(data(trial, experiment, kept)), indent=2))
    else:
        print(text(trial, experiment, kept))
    return 0


command = Command(
    "explain", "say why a trial was stopped, paused, retried or reset to another one's state", configure, run
)
