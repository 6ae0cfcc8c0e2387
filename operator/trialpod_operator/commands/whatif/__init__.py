"""`trialpod whatif DIR|URI|NAME --scheduler NAME`: what another scheduler would have made of an experiment."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target
from trialpod_operator.display.words import duration, plural

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
    from trialpod_operator.commands.whatif.replay import RecordedTrial, WhatIf
    from trialpod_operator.engine.settings import Settings

BEST = 3
"""Of so many of the best trials is said what would have become of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    target.add_directory_argument(parser)
    parser.add_argument("--scheduler", metavar="NAME", required=True, help="the other scheduler, such as asha")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter of it, as JSON, such as --set reduction_factor=3 (default of max_t: the highest recorded "
        "time_attr)",
    )
    parser.add_argument(
        "--max-concurrent", type=int, metavar="N", help="number of trials at once (default: as many as ran)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Decide again, and print what that changes."""
    from trialpod_operator.view.location import Location
    from trialpod_operator.view.reading import reading

    if options.max_concurrent is not None and options.max_concurrent < 1:
        raise InvalidInputError(f"--max-concurrent must be 1 or more, got {options.max_concurrent}")
    location = target.location(options.directory, options)
    if location is not None:
        source = Location(location)
        try:
            with reading(location) as experiment:
                return _show(experiment, source.storage, options)
        finally:
            source.close()
    with (
        target.stored_experiment(options.directory, options) as (_, _, uri, storage),
        reading(uri, storage) as experiment,
    ):
        return _show(experiment, storage, options)


def _show(experiment: Any, storage: Storage, options: argparse.Namespace) -> int:
    from trialpod_operator.commands.whatif import replay

    state = experiment.engine.state
    settings: Settings | None = state.settings
    known = [trial for trial in state.trials.values() if not trial.repeat_of]  # no scheduler knows of repeats
    if settings is None or not known:
        raise InvalidInputError(f"{experiment.location}: no trial has started yet; there is nothing to decide about")
    if settings.metric is None:
        raise InvalidInputError(f"{experiment.location} has no metric, so a scheduler cannot compare its trials")
    if settings.objectives:
        wanted = ", ".join(map(str, settings.objectives))
        raise InvalidInputError(f"{experiment.location} has several metrics ({wanted}); whatif compares by one")
    trials = replay.read_trials(storage, [(trial, experiment.path(trial).rpartition("/")[2]) for trial in known])
    if not trials:
        raise InvalidInputError(f"{experiment.location}: no trial has reported a result yet; try again later")
    ran = replay.concurrency(known)
    max_concurrent = options.max_concurrent or min(ran, settings.max_concurrent or ran)
    scheduler, parameters = _scheduler(options, trials)
    outcome = replay.decide_again(trials, settings, scheduler, max_concurrent)
    found = _data(outcome, settings, options.scheduler, parameters, max_concurrent)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(_text(found, {trial.trial_id: experiment.trial_name(trial) for trial in known}))
    return 0


def _scheduler(options: argparse.Namespace, trials: Sequence[RecordedTrial]) -> tuple[TrialScheduler, dict[str, Any]]:
    from trialpod.tune.plugins.catalogue import SCHEDULERS
    from trialpod.tune.schedulers import create_scheduler
    from trialpod_operator.commands.whatif import replay

    parameters: dict[str, Any] = {}
    for pair in options.set:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--set {pair}: write NAME=VALUE, such as --set reduction_factor=3")
        try:
            parameters[name] = json.loads(text)
        except ValueError:
            parameters[name] = text
    found = SCHEDULERS.find(options.scheduler)
    if not found.changes_configs:
        takes = inspect.signature(found).parameters
        if "max_t" in takes and "max_t" not in parameters:
            parameters["max_t"] = replay.highest(trials, parameters.get("time_attr", takes["time_attr"].default))
        scheduler = create_scheduler(options.scheduler, **parameters)
        if not scheduler.changes_configs:  # one that wraps another has what that has
            return scheduler, parameters
    raise InvalidInputError(
        f"--scheduler {options.scheduler}: {options.scheduler} continues trials with other parameters, of which no "
        "results are recorded; choose one that only stops or pauses trials, such as asha or auto"
    )


def _data(
    outcome: WhatIf, settings: Settings, scheduler: str, parameters: dict[str, Any], max_concurrent: int
) -> dict[str, Any]:
    metric, mode = str(settings.metric), settings.mode
    by_id: dict[str, RecordedTrial] = {trial.trial_id: trial for trial in outcome.trials}
    left = outcome.ranking(metric, mode, decided=True)
    best = [
        {
            "trial_id": trial_id,
            "value": value,
            "results": len(by_id[trial_id].results),
            "would_report": outcome.decided[trial_id].results,
            "lost": outcome.decided[trial_id].stopped,
        }
        for trial_id, value in outcome.ranking(metric, mode, decided=False)[:BEST]
    ]
    return {
        "name": settings.name,
        "scheduler": scheduler,
        "parameters": parameters,
        "maxConcurrent": max_concurrent,
        "metric": metric,
        "mode": mode,
        "trials": len(outcome.trials),
        "recorded_s": outcome.recorded_s,
        "spent_s": outcome.spent_s,
        "saved_s": outcome.recorded_s - outcome.spent_s,
        "stopped": sum(each.stopped for each in outcome.decided.values()),
        "beyond": sum(each.beyond for each in outcome.decided.values()),
        "best": best,
        "best_left": {"trial_id": left[0][0], "value": left[0][1]} if left else None,
    }


def _text(found: dict[str, Any], names: dict[str, str]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in found["parameters"].items())
    share = found["saved_s"] / found["recorded_s"] if found["recorded_s"] else 0.0
    under = f"{found['scheduler']}{f' ({settings})' if settings else ''}, {found['maxConcurrent']} at once"
    earlier = f"{plural(found['stopped'], 'trial')} would end earlier"
    lines = [
        f"{found['name']}: {plural(found['trials'], 'trial')} under {under}",
        f"  recorded training  {duration(found['recorded_s'])}",
        f"  it would take      {duration(found['spent_s'])}, {share:.0%} less; {earlier}",
    ]
    for number, trial in enumerate(found["best"], 1):
        name = names[trial["trial_id"]]
        rank = "best" if number == 1 else f"best no. {number}"
        fate = (
            f"LOST after {trial['would_report']} of {plural(trial['results'], 'result')}"
            if trial["lost"]
            else "comes to the same end"
        )
        lines.append(f"  {rank:<18} {name} ({found['metric']}={trial['value']:.4g}): {fate}")
    if found["best"] and found["best"][0]["lost"] and found["best_left"] is not None:
        left = found["best_left"]
        lines.append(f"  best that is left  {names[left['trial_id']]} ({found['metric']}={left['value']:.4g})")
    if found["beyond"]:
        lines.append(
            f"  not known          {plural(found['beyond'], 'trial')} would train beyond what is recorded: "
            "what that costs and brings is not counted"
        )
    return "\n".join(lines)


command = Command(
    "whatif",
    "say what another scheduler would have saved, and which of the best trials it would lose",
    configure,
    run,
)
