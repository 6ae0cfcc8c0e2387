"""What is looked at through the day, and whether it levels out.

A figure levels out when its median over the last third of the day is at most a tenth above its median from the sixth
to the half of the day (of 24 hours: the last eight, and hours 4 to 12). A fleet comes and goes and faults happen, so
maxima say little; what leaks raises the medians too, by what it leaks in twelve hours.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim_day import DayWorld

EARLIER = 1 / 6, 1 / 2
LATER = 2 / 3, 1.0
"""Parts of the day whose medians are compared."""
MORE = 1.10
"""At most so many times the earlier median."""
FEWEST = 5
"""Samples in each part: fewer say nothing."""
FIGURES = {
    "memory": ("memory of the process", "MB", 1e6, 0.0),
    "objects": ("Python objects", "thousand", 1e3, 0.0),
    "open_experiments": ("experiments in memory", "", 1.0, 1.0),
    "trials": ("trials in memory", "", 1.0, 0.0),
    "attempts": ("attempts in memory", "", 1.0, 0.0),
    "cached": ("objects in the operators' caches", "", 1.0, 0.0),
    "tasks": ("tasks of the operators", "", 1.0, 4.0),
    "threads": ("threads of the operators", "", 1.0, 4.0),
    "descriptors": ("open descriptors", "", 1.0, 4.0),
    "operator_files": ("files on the operators' disks", "", 1.0, 0.0),
    "journal_objects": ("journal objects in the bucket", "", 1.0, 0.0),
    "journal_bytes": ("journals in the bucket", "MB", 1e6, 0.0),
    "bucket_objects": ("objects in the bucket", "", 1.0, 0.0),
    "bucket_bytes": ("bucket", "MB", 1e6, 0.0),
    "api_objects": ("objects in the API server", "", 1.0, 0.0),
}
"""By the name in a sample: the words for it, its unit, what divides it, and by how much more is no growth."""

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """One look.

    Attributes:
        hour: of the day.
        memory: bytes of this process, with the operators, all pods' runners, API server and bucket in it.
        objects: Python objects that the collector of garbage knows.
        descriptors: open ones of this process.
        open_experiments, trials, attempts: in the memory of the operators.
        cached: objects in the operators' caches.
        tasks, threads: of the operators.
        operator_files: on the operators' disks.
        journal_objects, journal_bytes: in the bucket.
        bucket_objects, bucket_bytes: in the bucket, all of them.
        api_objects: in the API server.
        running: trials that run, by their pods.
        cpu_s: processor time until then.
    """

    hour: float
    memory: int
    objects: int
    descriptors: int
    open_experiments: int
    trials: int
    attempts: int
    cached: int
    tasks: int
    threads: int
    operator_files: int
    journal_objects: int
    journal_bytes: int
    bucket_objects: int
    bucket_bytes: int
    api_objects: int
    running: int
    cpu_s: float


def take_sample(world: DayWorld) -> Sample:
    """Look at everything now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * _PAGE_SIZE
    operators = world.alive
    controllers = [each for operator in operators for each in operator.controller._controllers.values()]
    engines = [each._durable.engine for each in controllers if each._durable is not None]
    journal = [key for key in world.values if "/.trialpod/journal/" in key]
    return Sample(
        hour=round(world.loop.time() / 3600.0, 4),
        memory=memory,
        objects=len(gc.get_objects()),
        descriptors=len(os.listdir("/proc/self/fd")),
        open_experiments=len(engines),
        trials=sum(len(engine.state.trials) for engine in engines),
        attempts=sum(each.size for each in controllers),
        cached=sum(_cached(operator.controller.cache) for operator in operators),
        tasks=sum(len(operator.process.tasks) for operator in operators),
        threads=sum(len(operator.process.threads) for operator in operators),
        operator_files=sum(
            len(files)
            for operator in operators
            for _, _, files in os.walk(operator.controller.services.options.work_dir)
        ),
        journal_objects=len(journal),
        journal_bytes=sum(len(world.values[key]) for key in journal),
        bucket_objects=len(world.values),
        bucket_bytes=sum(map(len, world.values.values())),
        api_objects=world.api.count(),
        running=len(world.pods.alive()),
        cpu_s=round(time.process_time(), 1),
    )


def _cached(cache: Any) -> int:
    return sum(len(each) for kept in (cache._trials, cache._pods) for each in kept.values()) + len(cache.experiments)


@dataclass(frozen=True)
class Level:
    """A figure in both parts of the day.

    Attributes:
        name: in a sample.
        earlier, later: medians.
        highest: of the whole day.
        level: whether it levels out.
    """

    name: str
    earlier: float
    later: float
    highest: float
    level: bool


def levels(samples: Sequence[Sample], more: float = MORE) -> list[Level]:
    """Return of each figure whether it levels out: `more` times the earlier median, at most.

    Raises:
        ValueError: there are too few samples.
    """
    hours = samples[-1].hour if samples else 0.0
    earlier, later = (
        [each for each in samples if first * hours <= each.hour <= last * hours] for first, last in (EARLIER, LATER)
    )
    if min(len(earlier), len(later)) < FEWEST:
        raise ValueError(f"{len(samples)} samples are too few to say whether anything levels out")
    found = []
    for name, (_, _, _, slack) in FIGURES.items():
        before, after = (statistics.median(getattr(each, name) for each in part) for part in (earlier, later))
        highest = max(getattr(each, name) for each in samples)
        found.append(Level(name, before, after, highest, after <= before * more + slack))
    return found


def growing(samples: Sequence[Sample], more: float = MORE) -> list[str]:
    """Return what does not level out, in words."""
    return [
        f"{FIGURES[each.name][0]}: {_shown(each.name, each.earlier)} from the sixth to the half of the time, "
        f"{_shown(each.name, each.later)} in its last third"
        for each in levels(samples, more)
        if not each.level
    ]


def _shown(name: str, value: float) -> str:
    _, unit, divisor, _ = FIGURES[name]
    return f"{value / divisor:.3g} {unit}".rstrip() if divisor > 1 else f"{value:,.0f}"


def table_of(samples: Sequence[Sample]) -> str:
    """Return the figures as a table in Markdown."""
    hours = samples[-1].hour
    parts = [f"hours {first * hours:.3g} to {last * hours:.3g}" for first, last in (EARLIER, LATER)]
    lines = [f"| figure | median of {parts[0]} | of {parts[1]} | change | maximum |", "|---|---|---|---|---|"]
    for each in levels(samples):
        change = f"{100.0 * (each.later / each.earlier - 1.0):+.1f}%" if each.earlier else ""
        shown = [_shown(each.name, value) for value in (each.earlier, each.later, each.highest)]
        level = "" if each.level else " **grows**"
        lines.append(f"| {FIGURES[each.name][0]} | {shown[0]} | {shown[1]} | {change}{level} | {shown[2]} |")
    return "\n".join(lines)


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Draw each figure over the hours, from zero."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "day"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, 3, figsize=(10.0, 10.5), sharex=True)
    hours = [each.hour for each in samples]
    for axis, (name, (what, unit, divisor, _)) in zip(axes.flat, FIGURES.items(), strict=True):
        axis.plot(hours, [getattr(each, name) / divisor for each in samples], color="#0072B2", linewidth=1.2)
        for first, last in (EARLIER, LATER):
            axis.axvspan(first * hours[-1], last * hours[-1], color="#999999", alpha=0.15, linewidth=0)
        axis.set_title(f"{what} ({unit})" if unit else what, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("virtual hours", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
