"""A table and a curve in a notebook's cell, updated in place: one output, which stays in the saved notebook as HTML.

Only the messages `display_data` and `update_display_data` are used: no widgets, no scripts. Every value is escaped.
It is drawn at most once in `INTERVAL_S` and only when something has changed. Warnings, errors and what trials print
are written as lines below it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from typing import Any, TextIO

from trialpod_operator.display.layout import trial_columns
from trialpod_operator.display.plain import PlainDisplay
from trialpod_operator.display.progress import best_value, done, outcome, standing, trials
from trialpod_operator.display.sparkline import BestSoFar
from trialpod_operator.display.view import ExperimentView, best_first
from trialpod_operator.display.words import VaryingParameters, clock, one_line, parameters

INTERVAL_S = 1.0
MAX_ROWS = 12
CURVE_WIDTH, CURVE_HEIGHT = 480, 72
MAX_CURVE_POINTS = 240

Bundle = dict[str, str]
"""One output in several forms, by their MIME types."""

Show = Callable[[Bundle], Callable[[Bundle], None]]
"""Shows an output in the current cell and returns what replaces it."""


def find_notebook() -> Show | None:
    """Return how to show HTML in the notebook that this process is the kernel of; None in any other process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:  # IPython on a terminal shows no HTML
        return None
    return _show


def _show(bundle: Bundle) -> Callable[[Bundle], None]:
    display: Any = import_module("IPython.display").display
    handle = display(bundle, raw=True, display_id=True)
    return lambda later: handle.update(later, raw=True)


class NotebookDisplay(PlainDisplay):
    """Shows a live table in a cell.

    Args:
        stream: where lines go.
        show: shows an output in the cell.
        verbose: as for `PlainDisplay`; at 0 no lines are written for trials that start and end.
        now: a monotonic clock, in seconds.
    """

    rows = MAX_ROWS
    interval_s = INTERVAL_S

    def __init__(
        self, stream: TextIO, show: Show, *, verbose: int = 0, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream, verbose=verbose, now=now)
        self._verbose = verbose
        self._show = show
        self._clock = now
        self._replace: Callable[[Bundle], None] | None = None
        self._next_draw = 0.0
        self._drawn: Bundle = {}
        self._view: ExperimentView | None = None
        self._varying = VaryingParameters()
        self._best = BestSoFar()

    def start(self, view: ExperimentView) -> None:
        """Show the experiment for the first time."""
        self._view = view
        self._drawn = self._bundle(view)
        self._replace = self._show(self._drawn)
        self._next_draw = self._clock() + INTERVAL_S

    def update(self, view: ExperimentView) -> None:
        """Draw again if it is time and it would look different."""
        self._view = view
        if self._clock() >= self._next_draw:
            self._next_draw = self._clock() + INTERVAL_S
            self._draw(self._bundle(view))

    def event(self, event: Any) -> None:
        """Write warnings and errors; other events only when more than the usual is asked for."""
        if event.level != "info" or self._verbose > 0 or not event.trial_id:
            super().event(event)

    def finish(self, view: ExperimentView) -> None:
        """Draw the final state, the best trials first."""
        self._draw(self._bundle(dataclasses.replace(view, rows=best_first(view))))
        self._view = None

    def close(self) -> None:
        """Leave what was known last, and say that it is not the end, when nothing was finished."""
        view, self._view = self._view, None
        if view is not None:
            self._draw(self._bundle(dataclasses.replace(view, state="Interrupted", eta_s=None)))
        self._replace = None

    def _draw(self, bundle: Bundle) -> None:
        if self._replace is not None and bundle != self._drawn:
            self._drawn = bundle
            self._replace(bundle)

    def _bundle(self, view: ExperimentView) -> Bundle:
        best = view.best
        for row in [*view.rows, *([best] if best is not None else [])]:
            self._varying.observe(row.trial_id, row.config)
        self._best.observe(best.value if best is not None else None)
        facts = [trials(view), *(words for _, words in standing(view)), clock(view.elapsed_s)]
        if view.state == "Running" and view.eta_s is not None:
            facts.append(f"ETA {clock(view.eta_s)}")
        plain = f"{one_line(view.name)} {outcome(view)}: {', '.join(facts)}"
        lines = [
            f"<p>{escape(plain)}</p>",
            f'<progress max="{view.total}" value="{done(view)}" style="width: {CURVE_WIDTH}px"></progress>'
            if view.total
            else "",
        ]
        if view.message:
            lines.append(f"<p>{escape(one_line(view.message))}</p>")
        if best is not None and best_value(view):
            known = parameters(best.config, self._varying.names or None)
            words = f"best {best_value(view)} by {one_line(best.trial_id)}: {known}"
            plain += f"\n{words}"
            lines.append(f"<p>{escape(words)}</p>")
        lines.append(_curve(self._best.values, f"best {one_line(view.metric or '')} so far"))
        lines.append(self._table(view))
        lines.append(f'<p style="opacity: 0.7">results: {escape(one_line(view.path))}</p>')
        return {"text/html": f"<div>{''.join(lines)}</div>", "text/plain": plain}

    def _table(self, view: ExperimentView) -> str:
        rows = view.rows[:MAX_ROWS]
        if not rows:
            return ""
        columns = trial_columns(rows, view.metric, self._varying.names, objectives=view.objectives)
        head = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(column.cells[at])}</td>" for column in columns) + "</tr>"
            for at in range(len(rows))
        )
        more = sum(view.counts.values()) - len(rows)
        words = f'<p style="opacity: 0.7">and {more:,} more</p>' if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{words}"


def _curve(values: Sequence[float], title: str) -> str:
    """Return values as steps from left to right, as SVG; empty until the value has changed once."""
    if len(set(values)) < 2:
        return ""
    step = max(1, len(values) // MAX_CURVE_POINTS)
    shown = [*values[:-1:step], values[-1]]
    low, high = min(shown), max(shown)
    width, height = CURVE_WIDTH - 70, CURVE_HEIGHT - 12
    path = ""
    for at, value in enumerate(shown):
        x, y = width * at / (len(shown) - 1), 6 + height * (1 - (value - low) / (high - low))
        path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
    return (
        f'<svg viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {shown[0]:.6g} to {shown[-1]:.6g}"><title>{escape(title)}</title>'
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f'<g font-size="11" fill="currentColor"><text x="{width + 6}" y="14">{high:.4g}</text>'
        f'<text x="{width + 6}" y="{CURVE_HEIGHT - 4}">{low:.4g}</text></g></svg>'
    )
