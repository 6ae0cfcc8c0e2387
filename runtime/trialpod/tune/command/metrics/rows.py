"""Metrics in the lines of a file: CSV below a header, lines as on an output, and MLflow's points. Pure."""

from __future__ import annotations

import csv
import io

from trialpod.protocol.command import MetricsSpec
from trialpod.tune.command.metrics.reader import LineReader
from trialpod.tune.command.metrics.text import Number, number


class CsvReader:
    """Reads rows of comma-, semicolon- or tab-separated values below a header, which may come again with others."""

    def __init__(self) -> None:
        self._header: list[str] | None = None
        self._delimiter = ","
        self.seen: dict[str, Number] = {}

    def read(self, line: str) -> dict[str, Number]:
        """Return the numbers of a row by the names of the header; {} for a header."""
        return self.read_row(line)[1]

    def read_row(self, line: str) -> tuple[int, dict[str, Number]]:
        """Return which row it is, the same when columns that are empty in it are added, and what `read` returns."""
        if self._header is None:
            self._delimiter = max(",;\t", key=line.count)
        cells = self._cells(line)
        if self._header is None or cells == self._header or self._is_header(cells):
            self._header = cells
            return hash("header"), {}
        row = list(zip(self._header, cells, strict=False))
        found = {name: value for name, cell in row if name and (value := number(cell)) is not None}
        self.seen.update(found)
        return hash(tuple(sorted(pair for pair in row if pair[1]))), found

    def _is_header(self, cells: list[str]) -> bool:
        """Return whether a row is another header: all its columns have names, and some are those of before."""
        known = {name for name in self._header or () if name}
        return all(cells[1:]) and not known.isdisjoint(cells) and all(number(cell) is None for cell in cells)

    def _cells(self, line: str) -> list[str]:
        row = next(csv.reader(io.StringIO(line), delimiter=self._delimiter), [])
        return [cell.strip() for cell in row]


def reader_for(path: str, spec: MetricsSpec, wanted: tuple[str, ...] = ()) -> CsvReader | LineReader:
    """Return the reader for a metrics file: CSV by its name or by `spec.format`, else as for an output."""
    if spec.format == "csv" or path.endswith((".csv", ".tsv")):
        return CsvReader()
    return LineReader(spec if spec.format != "none" else MetricsSpec(names=spec.names, step=spec.step), wanted)


def mlflow_point(line: str) -> tuple[int, Number] | None:
    """Return (step, value) of a line in a metric's file of an MLflow store: ``timestamp value step``."""
    parts = line.split()
    if len(parts) < 2:
        return None
    value = number(parts[1])
    step = number(parts[2]) if len(parts) > 2 else 0
    return (step, value) if value is not None and isinstance(step, int) else None
