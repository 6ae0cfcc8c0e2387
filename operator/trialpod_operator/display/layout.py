"""Trials as columns that fit a given width: what matters most stays, what does not fit is left out whole.

Own code: rich.table shrinks or wraps all columns where this one drops the least important ones, and its import would
cost `trialpod results` 100 ms of CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trialpod.tune.plugins.objectives import Objective
from trialpod_operator.display.table_options import TableOptions
from trialpod_operator.display.view import TrialRow
from trialpod_operator.display.words import (
    brief,
    cell_width,
    clip,
    clock,
    flatten,
    number,
    one_line,
    pad,
    short_names,
)

GAP = "  "
WIDEST_CELL = 24


@dataclass(frozen=True, slots=True)
class Column:
    """A column before it is fitted; a smaller `rank` is more important, `least` is the width it has at least."""

    title: str
    cells: list[str]
    rank: int
    right: bool = False
    least: int = 0
    width: int = field(init=False)
    """The terminal cells that it needs."""

    def __post_init__(self) -> None:
        widest = max(map(cell_width, self.cells), default=0)
        object.__setattr__(self, "width", max(self.least, cell_width(self.title), widest))


def trial_columns(
    rows: Sequence[TrialRow],
    metric: str | None,
    parameter_names: Sequence[str],
    options: TableOptions | None = None,
    objectives: Sequence[Objective] = (),
) -> list[Column]:
    """Return the columns of a table of trials, in the order in which they are shown.

    Args:
        rows: The trials.
        metric: The name over the column of values; None leaves the column out.
        parameter_names: Flattened names of the parameters to show.
        options: Titles, and more columns; None = none.
        objectives: What is optimised beside `metric`; each has a column if a trial has reported it.
    """
    options = options or TableOptions()
    widest = options.widest_cell or WIDEST_CELL
    configs = [flatten(row.config) for row in rows]
    columns = [
        Column("trial", [clip(one_line(row.trial_id), WIDEST_CELL) for row in rows], 0),
        Column("status", [one_line(row.status) for row in rows], 1),
        Column("iter", [f"{row.iteration:d}" for row in rows], 3, right=True),
    ]
    if metric:
        title = clip(one_line(metric), WIDEST_CELL)
        columns.append(Column(title, [number(row.value) for row in rows], 2, right=True))
    others = [each.name for each in objectives if each.name != metric]
    for name in others:
        found = [row.last_result.get(name) for row in rows]
        if any(value is not None for value in found):
            cells = ["" if value is None else clip(brief(value), widest) for value in found]
            columns.append(Column(clip(one_line(name), WIDEST_CELL), cells, 2, right=True))
    for position, (name, title) in enumerate(options.metrics.items()):
        if name in (metric, "training_iteration", *others):
            continue
        values = [row.last_result.get(name) for row in rows]
        right = any(isinstance(value, (int, float)) for value in values)
        cells = ["" if value is None else clip(brief(value), widest) for value in values]
        columns.append(Column(clip(one_line(title), widest), cells, 4 + position, right=right))
    columns.append(Column("time", [clock(row.run_time_s) for row in rows], 4, right=True))
    if any(row.attempts > 1 for row in rows):
        tries = [str(row.attempts) if row.attempts > 1 else "" for row in rows]
        columns.append(Column("attempt", tries, 6, right=True))
    titles = dict(zip(parameter_names, short_names(parameter_names), strict=True)) | dict(options.parameters or {})
    for position, (name, title) in enumerate(titles.items()):
        cells = [brief(config[name]) if name in config else "" for config in configs]
        numeric = any(
            isinstance(config.get(name), (int, float)) and not isinstance(config.get(name), bool)
            for config in configs
        )
        rank = 5 if position == 0 else 6 + position
        columns.append(Column(clip(title, WIDEST_CELL), cells, rank, right=numeric))
    return columns


def fit(columns: Sequence[Column], width: int | None) -> list[Column]:
    """Return the columns that fit into `width` cells, in their order; the first by rank is always among them."""
    if width is None:
        return list(columns)
    chosen: set[int] = set()
    room = width
    for index in sorted(range(len(columns)), key=lambda index: columns[index].rank):
        needed = columns[index].width + (len(GAP) if chosen else 0)
        if needed <= room or not chosen:
            chosen.add(index)
            room -= needed
    return [column for index, column in enumerate(columns) if index in chosen]


def lines(columns: Sequence[Column], width: int | None) -> list[list[str]]:
    """Return the title line and one line per row, each as cells filled to their column's width."""
    filled = []
    for column in columns:
        size = column.width if width is None else min(column.width, width)
        filled.append([pad(cell, size, right=column.right) for cell in (column.title, *column.cells)])
    return [list(cells) for cells in zip(*filled, strict=True)]


def text_table(columns: Sequence[Column], width: int | None) -> str:
    """Return a table as text; `width` None means as wide as it needs."""
    fitted = fit(columns, width)
    return "\n".join(GAP.join(cells).rstrip() for cells in lines(fitted, width))
