"""`trialpod check-metrics < log.txt`: what would be recognised as metrics in the output of a command.

It reads as a trial does, with the same reader and the same rules, in memory that does not grow with the output. Exit
status: 0 there is a result, 1 there is none.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError

if TYPE_CHECKING:
    from trialpod.protocol.command import MetricsSpec

SHOWN = 10
"""Results that are printed, before the last one."""

_CHUNK_BYTES = 64 * 1024


def lines_of(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of an output as a trial sees them."""
    from trialpod.tune.command.metrics.lines import LineSplitter

    splitter = LineSplitter()
    while data := stream.read(_CHUNK_BYTES):
        yield from splitter.feed(data)
    if last := splitter.finish():
        yield last


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("log", nargs="?", default="-", metavar="LOG", help="a file (default: the standard input)")
    parser.add_argument("-f", "--file", metavar="MANIFEST", help="take metric and metricsFrom from this manifest")
    parser.add_argument("--metric", metavar="NAME", help="the objective: its line completes a result")
    parser.add_argument("--pattern", metavar="REGEX", help="as metricsFrom.pattern")
    parser.add_argument("--step", metavar="NAME", help="as metricsFrom.step: the value that is the iteration")


def _settings(options: Namespace) -> tuple[str | None, MetricsSpec]:
    import msgspec

    from trialpod.protocol.command import MetricsSpec
    from trialpod_operator.api.command import command_of
    from trialpod_operator.api.loader import load_file

    metric, spec = None, MetricsSpec()
    if options.file:
        first, *more = load_file(options.file)
        command = command_of(first.spec.trainable)
        if command is None or more:
            what = "more than one experiment" if more else "no command as its Trainable"
            raise InvalidInputError(
                f"{options.file} has {what}; give one that has, or --metric, --pattern and --step"
            )
        metric, spec = first.spec.metric, command.metrics
    given = {name: value for name in ("pattern", "step") if (value := getattr(options, name)) is not None}
    return options.metric or metric, msgspec.structs.replace(spec, **given)


def _run(options: Namespace) -> int:
    if options.log == "-":
        return _check(sys.stdin.buffer, options)
    try:
        with open(options.log, "rb") as stream:
            return _check(stream, options)
    except OSError as error:
        raise InvalidInputError(f"cannot read {options.log}: {error.strerror}") from error


def _check(stream: IO[bytes], options: Namespace) -> int:
    from trialpod.tune.command.metrics.collector import ITERATION, ResultCollector
    from trialpod.tune.command.metrics.reader import LineReader, describe_search, missing_metric

    metric, spec = _settings(options)
    reader = LineReader(spec, (metric,) if metric else ())
    collector = ResultCollector(metric, spec.step)
    count = 0
    last = ""
    for number, line in enumerate(lines_of(stream), 1):
        count = number
        result = collector.add(values) if (values := reader.read(line)) else None
        if result is None:
            continue
        iteration = result.pop(ITERATION, collector.found)
        shown = " ".join(f"{name}={value}" for name, value in result.items())
        last = f"line {number}: iteration {iteration}: {shown}"
        if collector.found <= SHOWN:
            print(last)
    if collector.found > SHOWN:
        print(f"... {collector.found - SHOWN - 1} more ...\n{last}" if collector.found > SHOWN + 1 else last)
    print(f"\n{count} lines, {collector.found} results; looked for {describe_search(spec)}")
    if collector.dropped:
        print(f"left out, because trialpod sets them itself: {', '.join(sorted(collector.dropped)[:SHOWN])}")
    if collector.found and collector.rest:
        print(f"after the last result, and so in none: {', '.join(list(collector.rest)[:SHOWN])}")
    if not collector.found:
        print(missing_metric(metric, reader.seen) if metric else "no number with a name was found")
    return 0 if collector.found else 1


command = Command("check-metrics", "show what would be recognised as metrics in a command's output", _configure, _run)
