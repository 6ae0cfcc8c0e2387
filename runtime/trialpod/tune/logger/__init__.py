"""Logger callbacks: what sends the results of trials elsewhere. Each name is imported when it is first used."""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from trialpod.legacy.file_loggers import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
    from trialpod.legacy.loggers import (
        CSVLogger,
        JsonLogger,
        LegacyLoggerCallback,
        Logger,
        NoopLogger,
        TBXLogger,
        UnifiedLogger,
    )
    from trialpod.tune.logger.aim import AimLoggerCallback
    from trialpod.tune.logger.comet import CometLoggerCallback
    from trialpod.tune.logger.logger_callback import LoggerCallback
    from trialpod.tune.logger.mlflow import MLflowLoggerCallback, setup_mlflow
    from trialpod.tune.logger.wandb import WandbLoggerCallback, setup_wandb

__all__ = [
    "AimLoggerCallback",
    "CSVLogger",
    "CSVLoggerCallback",
    "CometLoggerCallback",
    "JsonLogger",
    "JsonLoggerCallback",
    "LegacyLoggerCallback",
    "Logger",
    "LoggerCallback",
    "MLflowLoggerCallback",
    "NoopLogger",
    "TBXLogger",
    "TBXLoggerCallback",
    "UnifiedLogger",
    "WandbLoggerCallback",
    "setup_mlflow",
    "setup_wandb",
]

_HOMES = {
    "AimLoggerCallback": "trialpod.tune.logger.aim",
    "CSVLogger": "trialpod.legacy.loggers",
    "CSVLoggerCallback": "trialpod.legacy.file_loggers",
    "CometLoggerCallback": "trialpod.tune.logger.comet",
    "JsonLogger": "trialpod.legacy.loggers",
    "JsonLoggerCallback": "trialpod.legacy.file_loggers",
    "LegacyLoggerCallback": "trialpod.legacy.loggers",
    "Logger": "trialpod.legacy.loggers",
    "LoggerCallback": "trialpod.tune.logger.logger_callback",
    "MLflowLoggerCallback": "trialpod.tune.logger.mlflow",
    "NoopLogger": "trialpod.legacy.loggers",
    "TBXLogger": "trialpod.legacy.loggers",
    "TBXLoggerCallback": "trialpod.legacy.file_loggers",
    "UnifiedLogger": "trialpod.legacy.loggers",
    "WandbLoggerCallback": "trialpod.tune.logger.wandb",
    "setup_mlflow": "trialpod.tune.logger.mlflow",
    "setup_wandb": "trialpod.tune.logger.wandb",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
