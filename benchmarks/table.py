"""The table of results, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from measuring import Measured
from rows import Figure, Workload

_HEAD = ("workload", "what", "trialpod", "Ray Tune", "ratio", "target", "ideal")


def render(chosen: Sequence[Workload], results: Mapping[str, Mapping[str, Sequence[Measured]]]) -> str:
    """Return one line for each figure: medians (minimum to maximum), and by how much trialpod is better."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    for workload in chosen:
        by_system = results[workload.name]
        lines += ["| " + " | ".join(_cells(workload, figure, by_system)) + " |" for figure in workload.figures]
    inits = [
        run.figures["init_s"]
        for by_system in results.values()
        for run in by_system.get("ray", ())
        if run.figures.get("init_s")
    ]
    if inits:
        took = f"{statistics.median(inits):.1f} s ({min(inits):.1f}-{max(inits):.1f})"
        lines += [
            "",
            f"`ray.init()` took {took} in addition. Only the rows of startup and resume_after_kill count it.",
        ]
    return "\n".join(lines)


def _cells(workload: Workload, figure: Figure, by_system: Mapping[str, Sequence[Measured]]) -> list[str]:
    ours, theirs = (_values(figure, by_system.get(system, ())) for system in ("trialpod", "ray"))
    own = _summary(figure, by_system["trialpod"])
    if ours and figure.target is not None:
        own += " ok" if figure.meets(statistics.median(ours)) else " **missed**"
    ideal = _ideal(figure, by_system["trialpod"])
    return [
        workload.name,
        figure.what,
        own,
        _summary(figure, by_system.get("ray", ())),
        _ratio(figure, ours, theirs),
        "" if figure.target is None else _number(figure.target, figure.unit),
        "" if ideal is None else _number(ideal, figure.unit),
    ]


def _values(figure: Figure, runs: Sequence[Measured]) -> list[float]:
    return [float(run.figures[figure.key]) for run in runs if figure.key in run.figures]


def _summary(figure: Figure, runs: Sequence[Measured]) -> str:
    values = _values(figure, runs)
    problems = sorted({run.problem for run in runs if run.problem})
    parts = []
    if values:
        middle, unit = statistics.median(values), figure.unit
        spread = "" if len(values) == 1 else f" ({_number(min(values), '')}-{_number(max(values), '')})"
        parts.append(_number(middle, unit) + spread)
    parts += problems
    return "; ".join(parts) or "-"


def _ratio(figure: Figure, ours: list[float], theirs: list[float]) -> str:
    if not ours or not theirs:
        return "-"
    mine, other = statistics.median(ours), statistics.median(theirs)
    better, worse = (mine, other) if figure.more_is_better else (other, mine)
    return f"{better / worse:.3g}x" if worse else "-"


def _ideal(figure: Figure, runs: Sequence[Measured]) -> float | None:
    if isinstance(figure.ideal, str):
        found: list[Any] = [run.figures[figure.ideal] for run in runs if figure.ideal in run.figures]
        return float(found[0]) if found else None
    return figure.ideal


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip() if not unit.startswith("/") else f"{text}{unit}"
