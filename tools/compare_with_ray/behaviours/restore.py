"""`Tuner.restore` and `tune.run(resume=)`."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from ray import tune


def _counts(config: dict[str, Any]) -> None:
    """Count to four; fail at two for x=2 while a marker is there."""
    start, begin = tune.get_checkpoint(), 0
    if start:
        with start.as_directory() as path:
            begin = int(open(f"{path}/n").read())
    for number in range(begin + 1, 5):
        with tempfile.TemporaryDirectory() as path:
            open(f"{path}/n", "w").write(str(number))
            tune.report({"n": number, "begin": begin}, checkpoint=tune.Checkpoint(path))
        if number == 2 and config["x"] == 2 and os.path.exists(config["marker"]):
            raise RuntimeError("marked")


def _first(folder: str, name: str) -> Any:
    open(f"{folder}/marker", "w").close()
    return tune.Tuner(
        _counts,
        param_space={"x": tune.grid_search([1, 2]), "marker": f"{folder}/marker"},
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
    ).fit()


def _seen(grid: Any) -> Any:
    found = sorted(
        (r.config["x"], r.metrics["n"], r.metrics["training_iteration"], r.metrics["begin"], bool(r.error))
        for r in grid
    )
    return [list(row) for row in found]


@probe
def errored_trials(folder: str) -> dict[str, Any]:
    first = _first(folder, "a")
    path = f"{folder}/a"
    for copy in ("b", "c"):
        shutil.copytree(path, f"{folder}/{copy}")
    os.remove(f"{folder}/marker")
    plain = tune.Tuner.restore(path, _counts)
    return {
        "first": _seen(first),
        "can_restore": tune.Tuner.can_restore(path),
        "get_results of a restored": _seen(plain.get_results()),
        "nothing to do": lambda: _seen(plain.fit()),
        "resume_errored": lambda: _seen(tune.Tuner.restore(path, _counts, resume_errored=True).fit()),
        "restart_errored": lambda: _seen(tune.Tuner.restore(f"{folder}/b", _counts, restart_errored=True).fit()),
        "both": lambda: tune.Tuner.restore(f"{folder}/c", _counts, resume_errored=True, restart_errored=True),
        "a moved folder": lambda: sorted(
            os.path.relpath(r.path, folder).split("/")[0]
            for r in tune.Tuner.restore(f"{folder}/c", _counts, resume_errored=True).fit()
        ),
        "another trainable": lambda: tune.Tuner.restore(path, lambda config: None).fit().num_errors,
        "a class": lambda: tune.Tuner.restore(path, tune.Trainable),
        "no trainable": lambda: tune.Tuner.restore(path),
        "another space": lambda: _seen(tune.Tuner.restore(path, _counts, param_space={"x": 1}).fit()),
        "the same space": lambda: _seen(
            tune.Tuner.restore(
                path, _counts, param_space={"x": tune.grid_search([1, 2]), "marker": f"{folder}/marker"}
            ).fit()
        ),
        "experiment path": lambda: tune.Tuner.restore(path, _counts).get_results().experiment_path,
        "unknown keyword": lambda: tune.Tuner.restore(path, _counts, nothing=True),
    }


@probe
def of_tune_run(folder: str) -> dict[str, Any]:
    open(f"{folder}/marker", "w").close()
    arguments: dict[str, Any] = {
        "config": {"x": tune.grid_search([1, 2]), "marker": f"{folder}/marker"},
        "storage_path": folder,
        "verbose": 0,
        "raise_on_failed_trial": False,
    }

    def seen(analysis: Any) -> Any:
        return [[t.config["x"], t.last_result["n"], t.last_result["begin"], t.status] for t in analysis.trials]

    first = tune.run(_counts, name="r", **arguments)
    os.remove(f"{folder}/marker")
    for copy in ("s", "t", "u"):
        shutil.copytree(f"{folder}/r", f"{folder}/{copy}")
    return {
        "first": seen(first),
        "resume": lambda: sorted(seen(tune.run(_counts, name="r", resume=True, **arguments))),
        "ERRORED_ONLY": lambda: sorted(seen(tune.run(_counts, name="s", resume="ERRORED_ONLY", **arguments))),
        "AUTO": lambda: sorted(seen(tune.run(_counts, name="t", resume="AUTO", **arguments))),
        "AUTO+ERRORED": lambda: sorted(seen(tune.run(_counts, name="u", resume="AUTO+ERRORED", **arguments))),
        "LOCAL of nothing": lambda: len(tune.run(_counts, name="none", resume="LOCAL", **arguments).trials),
        "ResumeConfig": lambda: sorted(
            seen(
                tune.run(
                    _counts,
                    name="r",
                    resume_config=tune.ResumeConfig(errored=tune.ResumeConfig.ResumeType.RESTART),
                    **arguments,
                )
            )
        ),
    }


@probe
def unfinished_trials(folder: str) -> dict[str, Any]:
    class Interrupts(tune.Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            if result["n"] == 2:
                raise RuntimeError("stop everything")

    def make(name: str, callbacks: Any) -> Any:
        return tune.Tuner(
            _counts,
            param_space={"x": 1, "marker": f"{folder}/marker"},
            run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0, callbacks=callbacks),
        )

    failed = raised(lambda: make("i", [Interrupts()]).fit())
    for copy in ("j", "k"):
        shutil.copytree(f"{folder}/i", f"{folder}/{copy}")

    def restored(name: str, **kwargs: Any) -> Any:
        grid = tune.Tuner.restore(f"{folder}/{name}", _counts, **kwargs).fit()
        return [[r.metrics.get("n"), r.metrics.get("begin")] for r in grid]

    return {
        "an error of a callback": failed,
        "resumed to the end": lambda: restored("i")[0][0],
        "not resumed": lambda: len(restored("j", resume_unfinished=False)),
        "resumed with others": lambda: restored("k", resume_errored=True)[0][0],
    }


@probe
def combinations(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(8):
        unfinished, errored, restart = bool(number & 4), bool(number & 2), bool(number & 1)
        _first(folder, f"r{number}")
        os.remove(f"{folder}/marker")
        again = tune.Tuner.restore(
            f"{folder}/r{number}",
            _counts,
            resume_unfinished=unfinished,
            resume_errored=errored,
            restart_errored=restart,
        )
        found[f"unfinished {unfinished}, resume {errored}, restart {restart}"] = _seen(again.fit())
    return found
