"""The live table on a terminal: at most `MAX_LINES` lines, updated in place.

It is drawn at most `REFRESH_PER_S` times a second and only when something that it shows has changed; in between an
update costs a comparison of times. There is no thread: what an update leaves undrawn, the next one draws.
Warnings and errors are written once, above the table, and stay there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from trialpod_operator.display.base import LastingStream, TrialOutput
from trialpod_operator.display.events import Event
from trialpod_operator.display.layout import GAP, Column, fit, lines, trial_columns
from trialpod_operator.display.progress import (
    Notices,
    RateMeter,
    best_value,
    standing,
    trials,
)
from trialpod_operator.display.sparkline import BestSoFar
from trialpod_operator.display.table_options import TableOptions
from trialpod_operator.display.view import ENDED, ExperimentView, TrialRow, best_first
from trialpod_operator.display.words import (
    VaryingParameters,
    cell_width,
    clip,
    clock,
    one_line,
    parameters,
    plural,
    printed_line,
    rate,
)

MAX_LINES = 20
REFRESH_PER_S = 8.0
SPARKLINE_WIDTH = 16
MIN_WIDTH_WITH_SPARKLINE = 100
"""Minimum width of a terminal where the best value so far is drawn, beside the best parameters."""
_SEPARATOR = " · "
_STYLES = {"RUNNING": "cyan", "PAUSED": "yellow", "ERROR": "red", "TERMINATED": "green", "PENDING": "dim"}
_STATE_STYLES = {"Running": "bold cyan", "Succeeded": "bold green", "Failed": "bold red"}
_LEVEL_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}

Part = tuple[str, str]  # words and their style


class TableDisplay:
    """Shows a live table.

    Args:
        stream: The terminal.
        verbose: 1 also writes a line above the table for each trial that starts, ends or is retried, and for each
            result; 2 also for what was decided, and for checkpoints.
        now: A monotonic clock, in seconds.
        console: A console in place of one for `stream`, for tests.
        options: What a script asks of the table; None = nothing.
    """

    rows = MAX_LINES
    interval_s = 1 / REFRESH_PER_S

    def __init__(
        self,
        stream: TextIO,
        *,
        verbose: int = 0,
        now: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        options: TableOptions | None = None,
    ) -> None:
        self._options = options or TableOptions()
        lasting = cast("TextIO", LastingStream(stream))
        self._console = console or Console(file=lasting, highlight=False, markup=False, emoji=False)
        self._verbose = verbose
        self.detail = max(verbose, 0)
        self._now = now
        self._next_draw = now()
        self._drawn: tuple[object, ...] = ()
        self._varying = VaryingParameters()
        self._widths: dict[str, int] = {}
        self._rate = RateMeter()
        self._best = BestSoFar()
        self._notices = Notices()
        self._live: Live | None = None

    def start(self, view: ExperimentView) -> None:
        """Say where the results go and draw the first table."""
        self._console.print(Text.assemble(("results: ", "dim"), one_line(view.path)), soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop", get_renderable=None)
        self._live.start()
        self._draw(view)

    def update(self, view: ExperimentView) -> None:
        """Draw the table again if it is time and it would look different."""
        if self._now() >= self._next_draw and self._appearance(view) != self._drawn:
            self._draw(view)

    def event(self, event: Event) -> None:
        """Write a warning or an error above the table, once."""
        if event.level == "info" and not self._verbose:
            return
        # The terminal wraps these lines, not rich: a long path stays one that can be copied.
        style = _LEVEL_STYLES.get(event.level, "")
        for index, line in enumerate(self._notices.lines(event)):
            self._console.print(Text(line, style=style if index == 0 else "dim"), soft_wrap=True)

    def output(self, output: TrialOutput) -> None:
        """Write what a trial printed above the table."""
        style = "cyan" if output.prefix else "dim"
        lines = [Text.assemble((output.prefix, style), " ", printed_line(line)) for line in output.lines]
        if not output.prefix:
            lines = [Text(line, style=style) for line in output.lines]
        if lines:
            self._console.print(Text("\n").join(lines), soft_wrap=True)

    def finish(self, view: ExperimentView) -> None:
        """Draw the last table, the best trials first, and leave it standing."""
        self._draw(dataclasses.replace(view, rows=best_first(view)))
        self.close()

    def close(self) -> None:
        """Stop drawing and show the cursor again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, view: ExperimentView) -> None:
        if self._live is None:
            return
        self._next_draw = self._now() + self.interval_s
        self._drawn = self._appearance(view)
        self._best.observe(view.best.value if view.best is not None else None)
        self._live.update(self.render(view), refresh=True)

    def _appearance(self, view: ExperimentView) -> tuple[object, ...]:
        best = view.best
        return (
            self._console.size,
            view.state,
            view.message,
            view.total,
            view.results,
            int(view.elapsed_s),
            tuple(view.counts.items()),
            (best.trial_id, best.value) if best else None,
            [(row.trial_id, row.status, row.iteration, row.value, int(row.run_time_s)) for row in view.rows],
        )

    def render(self, view: ExperimentView) -> Group:
        """Return the table for the console's present size."""
        width, height = self._console.size
        if view.best is not None:
            self._varying.observe(view.best.trial_id, view.best.config)
        for row in view.rows:
            self._varying.observe(row.trial_id, row.config)
        head = self._head(view, width)
        room = max(min(MAX_LINES, height - 1) - len(head) - 1, 0)
        return Group(*head, *self._trials(view, width, room))

    def _head(self, view: ExperimentView, width: int) -> list[Text]:
        first: list[Part] = [
            (one_line(view.name), "bold"),
            (view.state, _STATE_STYLES.get(view.state, "bold yellow")),
            (trials(view), _STYLES["ERROR"] if view.counts.get("ERROR") else ""),
        ]
        first += [(words, _STYLES[status]) for status, words in standing(view)]
        lines = [_joined(first, width), _joined(self._pace(view), width)]
        message = one_line(view.message)
        if message:
            lines.append(Text(clip(message, width), style="yellow"))
        best = best_value(view)
        if best and view.best is not None:
            chosen = parameters(view.best.config, self._varying.names or None)
            parts = [(f"best {best}", "bold green"), (f"{one_line(view.best.trial_id)}", "")]
            parts += [(f"iteration {view.best.iteration}", "")]
            curve = self._best.line(SPARKLINE_WIDTH)
            if curve and width >= MIN_WIDTH_WITH_SPARKLINE:
                parts.insert(1, (curve, "green"))
            lines.append(_joined([*parts, *([(chosen, "")] if chosen else [])], width, clip_last=True))
        return lines

    def _pace(self, view: ExperimentView) -> list[Part]:
        per_second = rate(self._rate.observe(view), "results/s")
        budget = f" of {clock(view.time_budget_s)}" if view.time_budget_s is not None else ""
        words = [f"{clock(view.elapsed_s)}{budget}"]
        if view.state == "Running":
            words += [f"ETA {clock(view.eta_s)}"] if view.eta_s is not None else []
            words += [rate(view.trials_per_minute, "trials/min"), per_second]
        else:
            words += [plural(view.results, "result")]
        return [(text, "dim") for text in words if text]

    def _steady(self, columns: list[Column]) -> list[Column]:
        """Return columns that never become narrower than they were, so that the table does not jump."""
        for column in columns:
            self._widths[column.title] = max(column.width, self._widths.get(column.title, 0))
        return [dataclasses.replace(column, least=self._widths[column.title]) for column in columns]

    def _trials(self, view: ExperimentView, width: int, room: int) -> list[Text]:
        if not view.rows or room < 2:
            return []
        known = sum(view.counts.values())
        most = self._options.most_rows
        rows = (best_first(view) if self._options.sort_by_metric else view.rows)[:most]
        shown = rows[: room - 1]
        if known > len(shown):
            shown = rows[: max(room - 2, 1)]
        names = self._varying.names if self._options.parameters is None else list(self._options.parameters)
        columns = fit(self._steady(trial_columns(shown, view.metric, names, self._options, view.objectives)), width)
        table = lines(columns, width)
        best = view.best.trial_id if view.best is not None else None
        drawn = [Text(""), Text(GAP.join(table[0]).rstrip(), style="dim")]
        for row, cells in zip(shown, table[1:], strict=True):
            line = Text(style="bold" if row.trial_id == best else "")
            for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
                line.append(GAP if index else "")
                line.append(cell, _STYLES.get(row.status, "") if column.title == "status" else "")
            line.rstrip()
            drawn.append(line)
        more = _hidden(view, shown)
        if more and len(drawn) <= room:
            drawn.append(Text(clip(f"… and {more}", width), style="dim"))
        return drawn


def _hidden(view: ExperimentView, shown: list[TrialRow]) -> str:
    """Return the numbers of trials that are not in the table: ``20 waiting, 8 ended``."""
    left = dict(view.counts)
    for row in shown:
        left[row.status] = left.get(row.status, 0) - 1
    words = {
        "waiting": left.get("PENDING", 0),
        "running": left.get("RUNNING", 0),
        "paused": left.get("PAUSED", 0),
        "ended": sum(left.get(status, 0) for status in ENDED),
    }
    return ", ".join(f"{count:,} {word}" for word, count in words.items() if count > 0)


def _joined(parts: list[Part], width: int, *, clip_last: bool = False) -> Text:
    """Join parts with dots; those that do not fit are left out, or cut when `clip_last` and some room is left."""
    text = Text()
    room = width
    for index, (words, style) in enumerate(parts):
        separator = _SEPARATOR if index else ""
        room -= len(separator)
        fits = cell_width(words) <= room
        if not fits and index and not (clip_last and index == len(parts) - 1 and room >= 8):
            break
        words = words if fits else clip(words, room)
        text.append(separator, "dim")
        text.append(words, style)
        room -= cell_width(words)
        if not fits:
            break
    return text
