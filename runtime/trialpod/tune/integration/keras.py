"""Keras: reports the logs of epochs or batches, and the model as checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.arguments import is_int
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
        frequency: calls of a hook from one checkpoint to the next, 0 = none; a list has one for each `checkpoint_on`.

    Raises:
        InvalidInputError: there is no such hook, or the frequencies are not one for each.
    """

    CHECKPOINT_NAME = "model.keras"

    def __init__(
        self,
        checkpoint_on: str | list[str] = "epoch_end",
        report_metrics_on: str | list[str] = "epoch_end",
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
        *,
        frequency: int | list[int] = 1,
    ) -> None:
        super().__init__()
        self._metrics, self._filename = metrics, filename
        self._logs: dict[str, Any] = {}
        saving, reporting = _frequencies(_hooks(checkpoint_on), frequency), _hooks(report_metrics_on)
        for hook in {*saving, *reporting}:
            setattr(self, f"on_{hook}", self._handler(saving.get(hook, 0)))

    def _handler(self, frequency: int) -> Any:
        calls = 0

        def handle(*arguments: Any, logs: dict[str, Any] | None = None) -> None:
            nonlocal calls
            calls += 1
            given = logs if logs is not None else next((each for each in arguments if isinstance(each, dict)), None)
            self._logs = dict(given or self._logs)
            due = frequency > 0 and calls % frequency == 0
            report_with(self._reported(self._logs), self.model.save if due else None, self._filename)

        return handle

    def _reported(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        return chosen(self._metrics, logs, _WHO)


class TuneReportCallback(ReportCheckpointCallback):
    """Reports metrics and no checkpoints."""

    def __init__(self, metrics: Metrics = None, on: str | list[str] = "epoch_end") -> None:
        super().__init__(checkpoint_on=[], report_metrics_on=on, metrics=metrics)


class TuneReportCheckpointCallback(ReportCheckpointCallback):
    """Reports metrics, each `frequency`-th time with the model."""

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = ReportCheckpointCallback.CHECKPOINT_NAME,
        frequency: int | list[int] = 1,
        on: str | list[str] = "epoch_end",
    ) -> None:
        super().__init__(
            checkpoint_on=on, report_metrics_on=on, metrics=metrics, filename=filename, frequency=frequency
        )


class Callback(ReportCheckpointCallback):
    """The same with the arguments of Ray 2.0 to 2.2."""

    def __init__(
        self, metrics: Metrics = None, on: str | list[str] = "epoch_end", frequency: int | list[int] = 1
    ) -> None:
        super().__init__(checkpoint_on=on, report_metrics_on=on, metrics=metrics, frequency=frequency)


class TuneReporterCallback(ReportCheckpointCallback):
    """The callback of Ray 0.8: reports all logs as `keras_info`, and the accuracy as `mean_accuracy`.

    Args:
        reporter: accepted for compatibility, unused.
        freq: "batch" or "epoch".
        logs: accepted for compatibility, unused.

    Raises:
        InvalidInputError: `freq` is another one.
    """

    def __init__(self, reporter: Any = None, freq: str = "batch", logs: Any = None) -> None:
        if freq not in ("batch", "epoch"):
            raise InvalidInputError(f"TuneReporterCallback(freq={freq!r}): must be 'batch' or 'epoch'")
        super().__init__(checkpoint_on=[], report_metrics_on=f"{freq}_end")

    def _reported(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        negated = {f"neg_{name}": -value for name, value in logs.items() if "loss" in name and "neg_" not in name}
        accuracy = logs.get("acc", logs.get("accuracy"))
        return {"keras_info": {**logs, **negated}, **({} if accuracy is None else {"mean_accuracy": accuracy})}


def _hooks(given: str | list[str]) -> list[str]:
    names = [hook.removeprefix("on_") for hook in ([given] if isinstance(given, str) else given)]
    for name in names:
        if name not in _HOOKS:
            guess = nearest(name, _HOOKS)
            raise InvalidInputError(
                f"{_WHO}: there is no hook {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
            )
    return names


def _frequencies(hooks: list[str], frequency: int | list[int]) -> dict[str, int]:
    """Return the frequency of each hook."""
    each = frequency if isinstance(frequency, list) else [frequency] * len(hooks)
    if len(each) != len(hooks) or not all(is_int(number) and number >= 0 for number in each):
        raise InvalidInputError(
            f"{_WHO}(frequency={frequency!r}): must be a number of calls, 0 for no checkpoints, or a list of one for "
            "each hook"
        )
    return dict(zip(hooks, each, strict=True))
