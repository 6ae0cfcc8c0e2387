"""`trialpod export DIR|URI|NAME`: an experiment in the forms that other tools read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target
from trialpod_operator.display.words import plural

if TYPE_CHECKING:
    from trialpod.storage.base import Storage


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    target.add_directory_argument(parser)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--csv", metavar="FILE", nargs="?", const="-", help="one line per trial (default: to stdout)")
    form.add_argument("--parquet", metavar="FILE", help="the same as Parquet")
    form.add_argument(
        "--optuna-journal", metavar="FILE", help="a study for Optuna, optuna-dashboard and its editor extensions"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    for name in (options.csv if options.csv != "-" else None, options.parquet, options.optuna_journal):
        if name is not None:
            _refuse_file(Path(name), options.force)
    write = _write_table if options.optuna_journal is None else _write_study
    location = target.location(options.directory, options)
    if location is not None:
        return write(location, None, options)
    with target.stored_experiment(options.directory, options) as (_, _, uri, storage):
        return write(uri, storage, options)


def _refuse_file(file: Path, force: bool) -> None:
    if file.exists() and not force:
        raise InvalidInputError(f"{file} exists; --force replaces it")
    if not file.parent.is_dir():
        raise InvalidInputError(f"{file.parent} is not a folder; create it, or name a file in another one")


def _write_table(location: str, storage: Storage | None, options: argparse.Namespace) -> int:
    from trialpod_operator.view import exports
    from trialpod_operator.view.reading import live_view, read_view

    if storage is None:
        rows = live_view(location, rows=None, orphans=False)[0].rows
    else:
        rows = read_view(location, rows=None, storage=storage).rows
    if options.csv == "-":
        print(exports.results_csv(rows))
        return 0
    if options.csv is not None:
        exports.write_csv(rows, Path(options.csv))
    else:
        exports.write_parquet(rows, Path(options.parquet))
    return _report(options.csv or options.parquet, len(rows))


def _write_study(location: str, storage: Storage | None, options: argparse.Namespace) -> int:
    from trialpod_operator.view import exports
    from trialpod_operator.view.location import Location
    from trialpod_operator.view.model import ExperimentModel

    model = ExperimentModel(Location(location, storage))
    try:
        model.load()
        exports.write_optuna_journal(model, Path(options.optuna_journal))
        return _report(options.optuna_journal, len(model.rows()))
    finally:
        model.location.close()


def _report(file: str, count: int) -> int:
    print(f"{file}: {plural(count, 'trial')}", file=sys.stderr)
    return 0


command = Command("export", "write an experiment as CSV, Parquet or a study of Optuna", configure, run)
