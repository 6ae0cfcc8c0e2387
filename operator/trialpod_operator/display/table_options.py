"""What a script's `CLIReporter` asks of the live table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trialpod.tune.progress_reporter import CLIReporter


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the live table looks.

    Attributes:
        metrics: More columns, by the names of metrics, with their titles.
        parameters: Columns for parameters, the same; None = those that vary.
        most_rows: The most trials that are shown; None = as many as fit.
        widest_cell: Characters; None = the usual.
        sort_by_metric: Show the best trials first, always.
    """

    metrics: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] | None = None
    most_rows: int | None = None
    widest_cell: int | None = None
    sort_by_metric: bool = False


def table_options(reporter: CLIReporter) -> TableOptions:
    """Return what a reporter asks for."""
    return TableOptions(
        metrics=dict(reporter.metric_columns or {}),
        parameters=reporter.parameter_columns,
        most_rows=int(reporter.max_progress_rows),
        widest_cell=int(reporter.max_column_length),
        sort_by_metric=reporter.sort_by_metric,
    )
