"""Progress reporters and what is printed."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import re
from typing import Any

from ray import tune
from ray.tune import CLIReporter, JupyterNotebookReporter, ProgressReporter


def _train(config: dict[str, Any]) -> None:
    for number in range(2):
        tune.report({"loss": number * config["x"], "acc": 0.5})


def _shown(folder: str, reporter: Any, **kwargs: Any) -> str:
    with printed() as stream:
        tune.Tuner(
            _train,
            param_space={"x": tune.grid_search([1, 2])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=1, progress_reporter=reporter, **kwargs),
        ).fit()
    return str(stream.getvalue())


def _header(text: str) -> list[str]:
    """Column names of the last table."""
    rows = [line for line in text.splitlines() if line.startswith("| Trial name")]
    return [cell.strip() for cell in rows[-1].strip("| ").split("|")] if rows else []


@probe
def tables(folder: str) -> dict[str, Any]:
    class Own(ProgressReporter):
        calls = 0

        def should_report(self, trials: Any, done: bool = False) -> bool:
            return done

        def report(self, trials: Any, done: bool, *sys_info: Any) -> None:
            Own.calls += 1
            print("own", done, len(trials))

    class OwnCli(CLIReporter):
        def should_report(self, trials: Any, done: bool = False) -> bool:
            return done

    own = _shown(folder, Own())
    columns = _shown(folder, CLIReporter(metric_columns=["loss"], parameter_columns={"x": "EX"}))
    mapped = _shown(folder, OwnCli(metric_columns={"acc": "accuracy", "training_iteration": "it"}))
    return {
        "an own reporter": [line for line in own.splitlines() if line.startswith("own")],
        "columns": _header(columns),
        "mapped columns": _header(mapped),
        "status line": [line for line in mapped.splitlines() if line.startswith("Number of trials")][-1:],
        "states": sorted(set(re.findall(r"\| (TERMINATED|RUNNING|PENDING|ERROR) +\|", mapped))),
        "rows": len([line for line in mapped.splitlines() if line.startswith("| _train")]),
    }


@probe
def settings(folder: str) -> dict[str, Any]:
    reporter = CLIReporter()
    return {
        "a column": raised(lambda: reporter.add_metric_column("loss")),
        "a column twice": raised(lambda: (reporter.add_metric_column("a"), reporter.add_metric_column("a"))[0]),
        "a column with a name": raised(lambda: reporter.add_metric_column("b", representation="B")),
        "a name in a list": raised(lambda: CLIReporter(metric_columns=["a"]).add_metric_column("b", "B")),
        "a parameter": raised(lambda: reporter.add_parameter_column("lr")),
        "a parameter twice": raised(
            lambda: (reporter.add_parameter_column("m"), reporter.add_parameter_column("m"))[0]
        ),
        "should_report": lambda: reporter.should_report([], done=True),
        "mode": raised(lambda: CLIReporter(metric="a", mode="up")),
        "base report": raised(lambda: ProgressReporter().report([], True)),
        "base should_report": raised(lambda: ProgressReporter().should_report([])),
        "jupyter": lambda: isinstance(JupyterNotebookReporter(overwrite=False), ProgressReporter),
        "DEFAULT_COLUMNS": lambda: sorted(CLIReporter.DEFAULT_COLUMNS),
        "set_search_properties": lambda: reporter.set_search_properties("loss", "min"),
        "set twice": lambda: reporter.set_search_properties("loss", "min"),
        "set_total_samples": lambda: reporter.set_total_samples(5),
        "setup": lambda: reporter.setup(),
    }
