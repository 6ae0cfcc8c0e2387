"""Keras: reports the logs of epochs or batches, and the model as checkpoints."""

from __future__ import annotations

from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.integration.reporting import Metrics, chosen, report_with
from trialpod.tune.logger.library import require

_WHO = "ReportCheckpointCallback"


def _library() -> Any:
    """Return Keras, or TensorFlow's."""
    from importlib.util import find_spec

    if find_spec("keras") is None and find_spec("tensorflow") is not None:
        return require("tensorflow", "tensorflow", _WHO).keras
    return require("keras", "keras", _WHO)


_base: Any = _library().callbacks.Callback
_HOOKS = tuple(
    f"{what}_{when}"
    for what in ("epoch", "batch", *(f"{of}{part}" for of in ("train", "test", "predict") for part in ("", "_batch")))
    for when in ("begin", "end")
)


class ReportCheckpointCallback(_base):  # type: ignore[misc]
    """Give it to ``model.fit(callbacks=[...])`` in a Trainable.

    Args:
        checkpoint_on: the hook, or hooks, whose report has the model: "epoch_end", "train_batch_end", "train_end".
        report_metrics_on: the hook, or hooks, that report the logs.
        metrics: names in the logs; a list of them, or a dict from reported names to these; None = all.
        filename: the model's in the checkpoint.

    Raises:
        InvalidInputError: there is no such hook.
    """

    CHECKPOINT_NAME = "model.keras"

    def __init__(
        self,
        checkpoint_on: str | list[str] = "epoch_end",
        report_metrics_on: str | list[str] = "epoch_end",
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
    ) -> None:
        super().__init__()
        self._metrics, self._filename = metrics, filename
        self._logs: dict[str, Any] = {}
        saving, reporting = _hooks(checkpoint_on), _hooks(report_metrics_on)
        for hook in {*saving, *reporting}:
            setattr(self, f"on_{hook}", self._handler(hook in saving))

    def _handler(self, saves: bool) -> Any:
        def handle(*arguments: Any, logs: dict[str, Any] | None = None) -> None:
            given = logs if logs is not None else next((each for each in arguments if isinstance(each, dict)), None)
            self._logs = dict(given or self._logs)
            metrics = chosen(self._metrics, self._logs, _WHO)
            report_with(metrics, self.model.save if saves else None, self._filename)

        return handle


class TuneReportCallback(ReportCheckpointCallback):
    """Reports metrics and no checkpoints."""

    def __init__(self, metrics: Metrics = None, on: str | list[str] = "epoch_end") -> None:
        super().__init__(checkpoint_on=[], report_metrics_on=on, metrics=metrics)


class TuneReportCheckpointCallback(ReportCheckpointCallback):
    """Reports metrics, each with the model."""

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = ReportCheckpointCallback.CHECKPOINT_NAME,
        on: str | list[str] = "epoch_end",
    ) -> None:
        super().__init__(checkpoint_on=on, report_metrics_on=on, metrics=metrics, filename=filename)


def _hooks(given: str | list[str]) -> list[str]:
    names = [hook.removeprefix("on_") for hook in ([given] if isinstance(given, str) else given)]
    for name in names:
        if name not in _HOOKS:
            guess = nearest(name, _HOOKS)
            raise InvalidInputError(
                f"{_WHO}: there is no hook {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
            )
    return names
