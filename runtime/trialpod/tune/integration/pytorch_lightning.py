"""PyTorch Lightning: reports what a module logs, and the trainer's checkpoints."""

from __future__ import annotations

from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.integration.reporting import Metrics, chosen, report_with
from trialpod.tune.logger.library import require

_WHO = "TuneReportCheckpointCallback"


def _library() -> Any:
    """Return Lightning under its name of today, or its older one."""
    from importlib.util import find_spec

    name = "lightning.pytorch" if find_spec("lightning") is not None else "pytorch_lightning"
    return require(name, "lightning", _WHO)


_base: Any = _library().Callback
_HOOKS = tuple(
    f"{what}_{when}"
    for what in (
        "sanity_check",
        "fit",
        "train",
        "train_epoch",
        "train_batch",
        "validation",
        "validation_epoch",
        "validation_batch",
        "test",
        "test_epoch",
        "test_batch",
    )
    for when in ("start", "end")
)


class TuneReportCheckpointCallback(_base):  # type: ignore[misc]
    """Give it to ``Trainer(callbacks=[...])`` in a Trainable.

    Args:
        metrics: names that the module logs; a list of them, or a dict from reported names to these; None = all.
        filename: the checkpoint's in its directory.
        save_checkpoints: whether each report has one.
        on: the hook, or hooks, at which it reports: "validation_end", "train_epoch_end", ...

    Raises:
        InvalidInputError: there is no such hook.
    """

    CHECKPOINT_NAME = "checkpoint.ckpt"

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | list[str] = "validation_end",
    ) -> None:
        super().__init__()
        self._metrics, self._filename, self._saves = metrics, filename, save_checkpoints
        self._warned: set[str] = set()
        for hook in [on] if isinstance(on, str) else on:
            name = hook.removeprefix("on_")
            if name not in _HOOKS:
                guess = nearest(name, _HOOKS)
                raise InvalidInputError(
                    f"{_WHO}(on={hook!r}): there is no such hook" + (f"; did you mean {guess!r}?" if guess else "")
                )
            setattr(self, f"on_{name}", self._report)

    def _report(self, trainer: Any, _module: Any, *_more: Any, **_info: Any) -> None:
        if trainer.sanity_checking:
            return
        logged = dict(trainer.callback_metrics)
        found = {name: value.item() if hasattr(value, "item") else value for name, value in logged.items()}
        # Means over an epoch of training are logged only after the epoch's validation.
        metrics = chosen(self._metrics, found, _WHO, warned=self._warned)
        if metrics:
            report_with(metrics, trainer.save_checkpoint if self._saves else None, self._filename)


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports metrics and no checkpoints."""

    def __init__(self, metrics: Metrics = None, on: str | list[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)
