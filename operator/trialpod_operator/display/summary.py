"""The closing lines of a run, and its exit status. Pure functions of an `ExperimentView`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trialpod.cli.program import program
from trialpod.errors import nearest
from trialpod.protocol.messages import AUTO_RESULT_KEYS
from trialpod.protocol.readable import real_number
from trialpod.storage.layout import LOG_FILE
from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.display.progress import done
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.display.words import duration, number, one_line, plural, python_literal, yaml_text

MAX_FRONT = 10
MAX_FAILURES = 5
MAX_KEYS = 12
EXIT_FINE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
_ENDED_WORDS = [("TERMINATED", "terminated"), ("ERROR", "failed")]
_OPEN_WORDS = [("RUNNING", "running"), ("PAUSED", "paused"), ("PENDING", "waiting")]
_STATIC_KEYS = {"trial_id", "experiment_tag", "pid", "hostname", "node_ip", "config"}
_NOT_METRICS = AUTO_RESULT_KEYS | _STATIC_KEYS


@dataclass(frozen=True)
class Remedies:
    """What a user can do about results that are there already, in the words of the interface that they use."""

    new_name: str = 'RunConfig(name="another name")'
    fresh: str = 'RunConfig(if_exists="fresh")'
    budget: str = "num_samples, time budgets, max_concurrent_trials, max_failures"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The command line that started the experiment, as far as it is needed to repeat it.

    Attributes:
        file: The manifest or script, as the user wrote it.
        name: `--name`, when it was given.
        storage: `--storage`, when it was given.
        sets: The `--set` options, each ``path=value``.
        max_concurrent: `--max-concurrent`, when it was given.
        num_samples: The experiment's numSamples; None when the command cannot change it.
        module: `file` is the name of a module.
        program: A program and its arguments, in place of `file`.
        options: `--metric` and the like that go with a program.
    """

    file: str
    name: str | None = None
    storage: str | None = None
    sets: tuple[str, ...] = field(default=())
    max_concurrent: int | None = None
    num_samples: int | None = None
    module: bool = False
    program: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def text(self, *flags: str, **changes: str) -> str:
        """Return the command; `changes` are fields of the spec to set in addition (or again)."""
        options = [option for option in self.sets if option.partition("=")[0] not in _paths(changes)]
        options += [f"{path}={value}" for path, value in zip(_paths(changes), changes.values(), strict=True)]
        words = ["run", *(["-m"] if self.module else []), *([] if self.program else [self.file]), *self.options]
        words += ["--name", self.name] if self.name else []
        words += ["--storage", self.storage] if self.storage else []
        words += ["--max-concurrent", str(self.max_concurrent)] if self.max_concurrent else []
        for option in options:
            words += ["--set", option]
        words += flags
        if self.program:
            words += ["--", *self.program]
        return f"{program()} {shlex.join(words)}"


def command_ways(command: RunCommand, budget: str) -> Remedies:
    """Return what can be done about results that are there already, as commands."""
    return Remedies(replace(command, name="NEW").text(), command.text("--fresh"), budget)


def _paths(changes: Iterable[str]) -> list[str]:
    return [f"spec.{name}" for name in changes]


def exit_status(view: ExperimentView, *, interrupted: bool, uncopied: str = "") -> int:
    """Return 130 when the user interrupted the run, 1 when a trial, the experiment or its copy failed, else 0."""
    if interrupted:
        return EXIT_INTERRUPTED
    failed = bool(uncopied) or view.state == "Failed" or view.counts.get("ERROR", 0) > 0
    return EXIT_FAILED if failed else EXIT_FINE


def summarize(view: ExperimentView, command: RunCommand | None = None) -> str:
    """Return the closing lines of a run.

    Args:
        view: The experiment at its end; failures are matched to logs through its rows.
        command: What started it; None (a run from Python) has lines of Python in place of commands.
    """
    parts = [_outcome(view), _failures(view), best_text(view)]
    if view.best is not None:
        parts.append(paste_text(view.best, yaml=view.vocabulary.yaml))
    parts.append(_next_commands(view, command))
    return "\n\n".join(part for part in parts if part)


def _outcome(view: ExperimentView) -> str:
    ended = [f"{view.counts[key]:,} {word}" for key, word in _ENDED_WORDS if view.counts.get(key)]
    left = [f"{view.counts[key]:,} {word}" for key, word in _OPEN_WORDS if view.counts.get(key)]
    text = f"{plural(done(view), 'trial')} in {duration(view.elapsed_s)}"
    if ended:
        text += f": {', '.join(ended)}"
    if left:
        text += f" ({', '.join(left)})"
    lines = [text]
    if view.state != "Succeeded":
        message = one_line(view.message)
        lines.append(f"{view.state}: {message}" if message else view.state)
    elif view.budget and view.message:
        lines.append(one_line(view.message))
    if view.budget:
        lines.append(f"budget: {view.budget}")
    if is_notable(view.resources):
        lines.append(account_text(view.resources))
    lines.append(f"results: {one_line(view.path)}")
    if any(view.counts.values()):
        lines.append(f"output:  {one_line(view.path)}/<trial>/{LOG_FILE}")
    return "\n".join(lines)


def _failures(view: ExperimentView) -> str:
    if not view.failures:
        return ""
    groups = sorted(view.failures.items(), key=lambda item: (-item[1], item[0]))
    lines = ["failures:"]
    for message, count in groups[:MAX_FAILURES]:
        lines.append(f"  {plural(count, 'trial')}: {one_line(message)}")
        path = next((row.path for row in view.rows if row.error == message), None)
        if path is not None:
            lines.append(f"    log: {one_line(path)}/{LOG_FILE}")
    if len(groups) > MAX_FAILURES:
        others = sum(count for _, count in groups[MAX_FAILURES:])
        lines.append(f"  {plural(others, 'trial')} with {plural(len(groups) - MAX_FAILURES, 'other message')}")
        lines.append(f"    all of them: {program()} results {one_line(shlex.quote(view.path))} --failed")
    return "\n".join(lines)


def best_text(view: ExperimentView) -> str:
    """Return the lines about the best trial, or why there is none."""
    best = view.best
    if best is None:
        return no_best(view, view.metric)
    value = f" with {one_line(view.metric)}={number(best.value)}" if view.metric else ""
    lines = [
        f"best trial: {one_line(best.name)}{value} at iteration {best.value_iteration or best.iteration}"
        + (f" of {best.iteration}" if best.value_iteration not in (None, best.iteration) else ""),
        f"  directory:  {one_line(best.path)}",
    ]
    if best.evaluation is not None:
        mean, spread, times = best.evaluation
        deviation = "" if spread is None else f", standard deviation {number(spread)}"
        lines.append(f"  repeats:    mean {number(mean)}{deviation}, n={times}")
    if best.checkpoint is None:
        lines.append("  checkpoint: none was saved")
    else:
        lines.append(f"  checkpoint: {one_line(best.checkpoint)}{_of_iteration(best)}")
    return "\n".join(lines + _front_lines(view))


def _front_lines(view: ExperimentView) -> list[str]:
    """Return the lines about the Pareto front of several metrics."""
    if not view.objectives:
        return []
    wanted = ", ".join(one_line(str(each)) for each in view.objectives)
    lines = [f"Pareto front ({wanted}): {plural(len(view.front), 'trial')}, the best in the first metric first"]
    for row, point in view.front[:MAX_FRONT]:
        values = ", ".join(
            f"{one_line(each.name)}={number(value)}" for each, value in zip(view.objectives, point, strict=True)
        )
        lines.append(f"  {one_line(row.name)}: {values}")
    if len(view.front) > MAX_FRONT:
        lines.append(f"  and {len(view.front) - MAX_FRONT} more; --json has them all")
    return lines


def _of_iteration(row: TrialRow) -> str:
    known = row.checkpoint_iteration is not None and row.checkpoint_iteration != row.iteration
    return f" (iteration {row.checkpoint_iteration})" if known else ""


def paste_text(row: TrialRow, *, yaml: bool = True) -> str:
    """Return a trial's parameters ready to paste, as Python and as YAML."""
    if not row.config:
        return "best parameters: it has none"
    python = python_literal(row.config).replace("\n", "\n         ")
    text = f"best parameters, as Python:\nconfig = {python}"
    if not yaml:
        return text
    lines = "\n".join(f"  {line}" for line in yaml_text(row.config).splitlines())
    return f"{text}\n\nas YAML:\n{lines}"


def reported_keys(rows: Iterable[TrialRow]) -> list[str]:
    """Return the keys that trials reported themselves, without the automatic ones, sorted."""
    keys = {key for row in rows for key in row.last_result}
    return sorted(key for key in keys if key not in _NOT_METRICS and not key.startswith("config/"))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def no_best(view: ExperimentView, metric: str | None) -> str:
    """Return why there is no best trial by `metric`, and what to do about it."""
    keys = reported_keys(view.rows)
    if view.results == 0 and not keys:
        return "no best trial: no trial has reported a result"
    if metric is None:
        numbers = [key for key in keys if any(_is_number(row.last_result.get(key)) for row in view.rows)]
        if keys and not numbers:
            return (
                f"no best trial: nothing that was reported is a number: {', '.join(map(one_line, keys[:MAX_KEYS]))}"
            )
        key = next(iter(numbers), "KEY")
        if not view.vocabulary.yaml:
            return f"no best trial: the experiment names no metric; {view.vocabulary.metric(one_line(key))}"
        return (
            "no best trial: the experiment names no metric; name one here: "
            f"{program()} best {one_line(shlex.quote(view.path))} --metric {one_line(shlex.quote(key))} --mode max"
        )
    if view.objectives and view.best is None and any(metric in row.last_result for row in view.rows):
        wanted = ", ".join(one_line(str(each)) for each in view.objectives)
        return (
            f"no best trial: none reported a finite number of each metric and met every threshold ({wanted}); loosen "
            "the thresholds in a new experiment, or compare by one metric here with --metric and --mode"
        )
    name = one_line(metric)
    values = [row.last_result[metric] for row in view.rows if metric in row.last_result]
    if values:
        found = map(real_number, values)
        if all(number is not None and not math.isfinite(number) for number in found):
            return f"no best trial: every {name!r} that was reported is NaN or infinite"
        return f"no best trial: {name!r} was reported, but never as a number"
    lines = [f"no best trial: no trial reported the metric {name!r}"]
    if keys:
        more = f" and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else ""
        lines.append(f"  reported metrics: {', '.join(map(one_line, keys[:MAX_KEYS]))}{more}")
        close = nearest(metric, keys)
        if close is not None:
            where = "either place" if view.vocabulary.yaml else "TuneConfig, or what the Trainable reports,"
            lines.append(
                f"  did you mean {one_line(close)!r}? Correct the metric's name in {where} and run it again; "
                f"for these results: {program()} best {one_line(shlex.quote(view.path))} "
                f"--metric {one_line(shlex.quote(close))} --mode {view.mode or 'max'}"
            )
    else:
        lines.append("  no key of the user's own was reported; pass a dict with it to tune.report")
    return "\n".join(lines)


def _lacks_metric(view: ExperimentView) -> bool:
    """Return whether trials reported, but never the metric: trying again, unchanged, would fail again."""
    return (
        view.metric is not None and view.results > 0 and all(view.metric not in row.last_result for row in view.rows)
    )


def _next_commands(view: ExperimentView, command: RunCommand | None) -> str:
    if command is None:
        return "" if view.vocabulary.yaml else "\n".join(_python_ways(view))
    lines = []
    budget = view.time_budget_s
    used_up = view.state == "Stopped" and budget is not None and view.elapsed_s >= budget
    script = command.num_samples is None
    if used_up and budget is not None:
        longer = f"{budget * 2:g}"
        again = f"{command.text()}, with time_budget_s={longer} in its TuneConfig"
        lines.append(f"resume:  {again if script else command.text(timeBudget=f'{longer}s')}")
    elif view.state == "Stopped" and view.budget_used_up is not None:
        name, hours = view.budget_used_up
        argument = re.sub("([A-Z])", r"_\1", name).lower()
        again = f"{command.text()}, with {argument}={hours * 2:g} in its TuneConfig"
        lines.append(f"resume:  {again if script else command.text(**{name: f'{hours * 2:g}'})}")
    elif view.state not in ("Succeeded", "Failed"):
        lines.append(f"resume:  {command.text()}")
    if view.counts.get("ERROR") and not _lacks_metric(view):
        lines.append(f"retry:   {command.text('--retry-failed')}")
    if command.num_samples and command.num_samples > 0 and view.state != "Failed":
        lines.append(f"extend:  {command.text(numSamples=str(command.num_samples * 2))}")
    lines.append(f"compare: {program()} results {one_line(shlex.quote(view.path))}")
    lines.append(f"look:    {program()} ui {one_line(shlex.quote(view.path))}")
    return "\n".join(lines)


def _python_ways(view: ExperimentView) -> list[str]:
    """Return how a script that was run by Python itself continues an experiment that has not ended well."""
    again = f"tune.Tuner.restore({view.path!r}, trainable"
    lines = []
    if view.state not in ("Succeeded", "Failed"):
        lines.append(f"resume:  {again}).fit()")
    if view.counts.get("ERROR") and not _lacks_metric(view):
        lines.append(f"retry:   {again}, resume_errored=True).fit()")
    return lines


# -- what trials took --

SHORT_S = 60.0
"""The closing lines of a run say nothing of less trial time."""

_WORDS = {"useful": "useful", "stopped": "stopped early", "lost": "lost to interruptions", "failed": "failed"}

Hours = Mapping[str, Mapping[str, float]]


def account_text(hours: Hours) -> str:
    """Return the lines about trials and GPUs, "" when nothing was taken.

    Args:
        hours: of each resource, by "used" and the outcomes, as `trialpod_operator.engine.accounting.hours` returns.
    """
    gpus: dict[str, float] = {}
    for name, parts in hours.items():
        if is_gpu(name):
            for part, amount in parts.items():
                gpus[part] = gpus.get(part, 0.0) + amount
    trials = hours.get("trial") or {}
    return "\n".join(_line(name, parts) for name, parts in (("trial", trials), ("GPU", gpus)) if parts.get("used"))


def is_notable(hours: Hours) -> bool:
    """Return whether there is more to say than that everything was useful, or little."""
    parts = hours.get("trial") or {}
    wasted = sum(parts.get(part, 0.0) for part in _WORDS if part != "useful")
    return parts.get("used", 0.0) * 3600 >= SHORT_S and wasted > 0


def _line(name: str, parts: Mapping[str, float]) -> str:
    used = parts["used"]
    shares = [(parts.get(part, 0.0) / used, word) for part, word in _WORDS.items()]
    shares.append((1.0 - sum(share for share, _ in shares), "undecided"))
    text = ", ".join(f"{_percent(share)} {word}" for share, word in shares if share >= 0.0005)
    return f"{name} time: {duration(used * 3600)} ({text})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"
