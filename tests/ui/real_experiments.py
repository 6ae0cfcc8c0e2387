"""Experiments in folders, made by the real engine event by event."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

from sample_experiment import SampleExperiment

from trialpod.storage.layout import LOG_FILE
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.pbt import PopulationBasedTraining
from trialpod.tune.search.sample import choice, loguniform, randint, uniform
from trialpod_operator.engine.trial import Trial

MARKUP = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
EPOCHS = 27


class GrownExperiment(SampleExperiment):
    """An experiment whose trials report an accuracy that their parameters explain.

    Args:
        folder: where; its name is the experiment's.
        trials: how many.
        running: so many of them do not come to an end.
        markup: values, errors, metrics and logs look like HTML.
    """

    def __init__(self, folder: Path, trials: int, *, running: int = 2, markup: bool = False) -> None:
        self.markup = markup
        super().__init__(
            folder,
            [],
            scheduler=AsyncHyperBandScheduler(
                time_attr="training_iteration", max_t=EPOCHS, grace_period=3, reduction_factor=3
            ),
            space={
                "lr": loguniform(1e-5, 1e-1),
                "optimizer": choice(["adam", "sgd", MARKUP if markup else "lamb"]),
                "layers": randint(1, 7),
                "dropout": uniform(0.0, 0.6),
                "seed": randint(0, 3),
            },
            num_samples=trials,
            started=time.time() - 3600,
        )
        for number, trial in enumerate(list(self.host.engine.state.trials.values())):
            self.grow(trial, unfinished=number >= trials - running)
        self.host.flush()

    def grow(self, trial: Trial, *, unfinished: bool) -> None:
        """Run a trial until its scheduler stops it, it fails, or has come to its end."""
        self.start(trial.trial_id)
        if trial.index % 41 == 17:
            error = MARKUP if self.markup else "torch.OutOfMemoryError: CUDA out of memory"
            for attempt in (1, 2):  # one failure is retried
                self.end(trial.trial_id, "failed", attempt=attempt, error=error)
        else:
            for _ in range(2 if unfinished else EPOCHS):
                self.step(trial)
                if trial.current.decision is not None:
                    break
            if not unfinished or trial.current.decision is not None:
                self.end(trial.trial_id, "stopped")
        if self.markup:
            log = self.host.files.path(trial) / LOG_FILE
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(MARKUP + "\n")

    def step(self, trial: Trial) -> None:
        """Report again."""
        config: dict[str, Any] = trial.config
        top = 0.97 - 0.06 * abs(math.log10(config["lr"]) + 2.6) ** 1.6 - 0.05 * config["dropout"] ** 2
        noise = random.Random(trial.index * 100 + trial.iteration).gauss(0, 0.004)
        score = 0.1 + (top - 0.1) * (1 - math.exp(-(trial.iteration + 1) / 3.2)) + noise
        more = {MARKUP: 1.0} if self.markup else {}
        self.report(trial.trial_id, round(score, 5), loss=round(1.3 - score, 5), **more)

    def unfinished(self) -> list[Trial]:
        """Return the trials that run."""
        return [trial for trial in self.host.engine.state.trials.values() if trial.running]


def grow_population(folder: Path, trials: int = 8, rounds: int = 5) -> SampleExperiment:
    """Return a population-based training, two trials at a time, behind a snapshot."""
    sample = SampleExperiment(
        folder,
        [],
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=1,
            hyperparam_mutations={"lr": loguniform(1e-4, 1e-1)},
            seed=4,
        ),
        space={"lr": loguniform(1e-4, 1e-1)},
        num_samples=trials,
        max_concurrent=2,
        started=time.time() - 3600,
    )
    every = sample.host.engine.state.trials
    while len(every) < trials or min(trial.iteration for trial in every.values()) < rounds:
        trial = min((each for each in every.values() if each.running), key=lambda each: each.attempt)
        attempt = trial.attempt
        sample.start(trial.trial_id, attempt)
        for _ in range(3):
            sample.report(trial.trial_id, trial.iteration - abs(math.log10(trial.config["lr"])), attempt=attempt)
            sample.commit(trial.trial_id, trial.iteration, attempt)
            if trial.current.decision is not None:
                break
        sample.end(trial.trial_id, "paused" if trial.iteration < rounds + 3 else "completed", attempt)
    sample.snapshot()
    return sample


def grow_tradeoff(folder: Path, trials: int = 24) -> SampleExperiment:
    """Return an experiment with two objectives, a threshold and a parameter that only some trials have."""
    sample = SampleExperiment(
        folder,
        [],
        scheduler=FIFOScheduler(),
        space={
            "width": randint(1, 200),
            "optimizer": choice(
                [{"name": "adam"}, {"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.5}]
            ),
        },
        num_samples=trials,
        started=time.time() - 3600,
        objectives=[Objective("accuracy", "max", 0.6), Objective("latency", "min")],
    )
    for trial in list(sample.host.engine.state.trials.values()):
        sample.start(trial.trial_id)
        width: int = trial.config["width"]
        noise = random.Random(trial.index).gauss(0, 0.02)
        result = {"accuracy": round(1 - 1 / (1 + width / 40) + noise, 4), "latency": round(width / 10 + 1, 3)}
        sample.report(trial.trial_id, 0.0, **result)
        sample.end(trial.trial_id)
    sample.host.flush()
    return sample
