"""LightGBM: reports the evaluation of each boosting round, and the model as checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.integration.reporting import BoosterReports, Metrics
from trialpod.tune.logger.library import require
from trialpod.tune.session import save_at_end

_WHO = "TuneReportCheckpointCallback"
_lightgbm: Any = require("lightgbm", "lightgbm", _WHO)


class TuneReportCheckpointCallback:
    """Give it to ``lightgbm.train(callbacks=[...])`` in a Trainable.

    Args:
        metrics: names such as ``"valid-binary_logloss"``; a list, or a dict from reported names to these; None = all.
        filename: the model's in the checkpoint.
        frequency: rounds from one checkpoint to the next; 0 = none on the way.
        checkpoint_at_end: whether the model is kept at the end: with the last round's report, or after early stopping
            when the Trainable has ended.
        results_postprocessing_fn: called with the chosen metrics by their reported names; returns what is reported.
    """

    CHECKPOINT_NAME = "model.txt"

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self._reports = BoosterReports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:
        """Return the model in a checkpoint."""
        with checkpoint.as_directory() as folder:
            return _lightgbm.Booster(model_file=f"{folder}/{filename}")

    def __call__(self, env: Any) -> None:
        """Report a round."""
        latest: dict[str, Any] = {}
        for data, metric, value, _higher, *deviation in env.evaluation_result_list:
            if deviation:  # cross validation
                latest[f"{data}-{metric}-mean"] = value
                latest[f"{data}-{metric}-stdv"] = deviation[0]
            else:
                latest[f"{data}-{metric}"] = value
        last = env.iteration + 1 == env.end_iteration
        reports, save = self._reports, env.model.save_model
        reports.report(latest, env.iteration, save, _WHO, last=last)
        if reports.at_end and reports.saved != env.iteration:
            # Early stopping may end the training after this call.
            save_at_end(lambda folder: save(os.path.join(folder, reports.filename)))


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports metrics and no checkpoints."""

    def __init__(
        self,
        metrics: Metrics = None,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            metrics=metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )


RayTrainReportCallback = TuneReportCheckpointCallback
