"""XGBoost: reports the evaluation of each boosting round, and the model as checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.integration.reporting import BoosterReports, Metrics, report_with
from trialpod.tune.logger.library import require

_WHO = "TuneReportCheckpointCallback"
_xgboost: Any = require("xgboost", "xgboost", _WHO)


class TuneReportCheckpointCallback(_xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Give it to ``xgboost.train(callbacks=[...])`` in a Trainable.

    Args:
        metrics: names such as ``"eval-logloss"``; a list of them, or a dict from reported names to these; None = all.
        filename: the model's in the checkpoint.
        frequency: rounds from one checkpoint to the next; 0 = none on the way.
        checkpoint_at_end: whether the model is reported at the end.
        results_postprocessing_fn: called with the chosen metrics by their reported names; returns what is reported.
            In ``xgboost.cv`` each is a tuple of mean and deviation.
    """

    CHECKPOINT_NAME = "model.ubj"

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._reports = BoosterReports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._epoch = -1

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:
        """Return the model in a checkpoint."""
        with checkpoint.as_directory() as folder:
            model = _xgboost.Booster()
            model.load_model(f"{folder}/{filename}")
            return model

    def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, Any]) -> bool:
        """Report a round; it never ends the training: `report` does."""
        self._epoch = epoch
        latest = {
            f"{data}-{metric}": _last(values) for data, found in evals_log.items() for metric, values in found.items()
        }

        def save(path: str) -> None:
            model.save_model(path)  # the models of ``xgboost.cv`` do not have it

        self._reports.report(latest, epoch, save, _WHO)
        return False

    def after_training(self, model: Any) -> Any:
        """Report the model, unless the last round did."""
        reports = self._reports
        if reports.at_end and self._epoch >= 0 and reports.saved != self._epoch and hasattr(model, "save_model"):
            report_with(reports.last, model.save_model, reports.filename)
        return model


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


def _last(values: Any) -> float | tuple[float, ...]:
    last = values[-1]
    return (
        tuple(map(float, last)) if isinstance(last, tuple) else float(last)
    )  # mean and deviation, in ``xgboost.cv``
