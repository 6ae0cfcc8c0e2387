"""An experiment in a folder that a test drives event by event, as its shell would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, TrainableRef
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod_operator.engine import events
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.stored import write_stored


class SampleExperiment:
    """A real engine with its journal; `now` is its clock.

    Args:
        folder: where; its name is the experiment's.
        values: of the parameter x, one trial each.
        max_t: where ASHA ends trials; its first rung is at 1.
        scheduler: in place of ASHA.
        max_concurrent: how many trials run at a time; None: all.
        space: of more parameters than x.
        num_samples: how many times it is drawn from.
        started: seconds since the epoch.
        objectives: in place of the metric "score".
    """

    def __init__(
        self,
        folder: Path,
        values: list[Any],
        max_t: int = 1_000_000,
        scheduler: TrialScheduler | None = None,
        max_concurrent: int | None = None,
        space: dict[str, Any] | None = None,
        num_samples: int = 1,
        started: float = 1000.0,
        objectives: list[Objective] | None = None,
    ) -> None:
        self.folder = folder
        self.now = started
        search = BasicVariantGenerator(seed=1)
        search.configure({"x": grid_search(values)} if space is None else space, num_samples)
        self.plan = ExperimentPlan(
            settings=Settings(
                name=folder.name,
                trainable_name="train",
                metric=objectives[0].name if objectives else "score",
                mode=objectives[0].mode if objectives else "max",
                objectives=objectives or [],
                max_failures=1,
                max_concurrent=max_concurrent,
                num_samples=num_samples,
            ),
            search=search,
            scheduler=scheduler
            or AsyncHyperBandScheduler(max_t=max_t, grace_period=max(1, max_t // 2), reduction_factor=2),
            stopper=None,
            trainable=TrainableRef(entrypoint="m:train"),
        )
        write_stored(folder, {"name": folder.name, "total": num_samples * max(1, len(values))})
        self.host = JournaledEngine(self.plan, folder, lambda: self.now, lambda action: None)
        self.apply(events.SettingsObserved(settings=self.plan.settings))
        self.received: dict[tuple[str, int], int] = {}

    @property
    def trials(self) -> list[str]:
        return list(self.host.engine.state.trials)

    def apply(self, event: events.AnyEvent) -> None:
        self.now += 1.0
        self.host.apply(event)

    def start(self, trial: str, attempt: int = 1, hostname: str = "node-a") -> None:
        resources = {"cpu": 1.0}
        event = events.AttemptStarted(trial_id=trial, attempt=attempt, hostname=hostname, resources=resources)
        self.apply(event)

    def report(self, trial: str, *scores: float, attempt: int = 1, **more: Any) -> None:
        first = self.received.get((trial, attempt), 0) + 1
        at = self.host.engine.state.trials[trial].iteration
        raw = [
            msgspec.Raw(
                metrics_encoder.encode(
                    {"training_iteration": at + 1 + n, "time_total_s": 0.5 * (at + 1 + n), "score": score, **more}
                )
            )
            for n, score in enumerate(scores)
        ]
        self.received[trial, attempt] = first + len(scores) - 1
        self.apply(events.ResultsReceived(trial_id=trial, attempt=attempt, first=first, results=raw))

    def commit(self, trial: str, iteration: int, attempt: int = 1) -> None:
        index = self.host.engine.state.trials[trial].next_checkpoint_index
        info = CheckpointInfo(
            name=f"checkpoint_{index:06d}", index=index, iteration=iteration, metrics={}, attempt=attempt, size=7
        )
        self.apply(events.CheckpointsChanged(trial_id=trial, attempt=attempt, committed=[info]))

    def end(self, trial: str, cause: Any = "completed", attempt: int = 1, error: str = "") -> None:
        end = AttemptEnd(cause=cause, error=error)
        self.apply(events.AttemptEnded(trial_id=trial, attempt=attempt, end=end))

    def snapshot(self) -> None:
        self.host.flush()
        self.host.write_snapshot()

    def close(self) -> None:
        self.host.close()
