"""Helpers for those who write and test Trainables; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialpod.tune.utils.dicts import (
        date_str,
        deep_update,
        flatten_dict,
        merge_dicts,
        unflatten_dict,
        unflattened_lookup,
        warn_if_slow,
    )
    from trialpod.tune.utils.gpu import wait_for_gpu
    from trialpod.tune.utils.serialization import diagnose_serialization
    from trialpod.tune.utils.signatures import detect_checkpoint_function, detect_config_single, detect_reporter
    from trialpod.tune.utils.usage import UtilMonitor
    from trialpod.tune.utils.validation import validate_save_restore, validate_warmstart

_HOMES = {
    "dicts": (
        "date_str",
        "deep_update",
        "flatten_dict",
        "merge_dicts",
        "unflatten_dict",
        "unflattened_lookup",
        "warn_if_slow",
    ),
    "signatures": ("detect_checkpoint_function", "detect_config_single", "detect_reporter"),
    "gpu": ("wait_for_gpu",),
    "serialization": ("diagnose_serialization",),
    "usage": ("UtilMonitor",),
    "validation": ("validate_save_restore", "validate_warmstart"),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "UtilMonitor",
    "date_str",
    "deep_update",
    "detect_checkpoint_function",
    "detect_config_single",
    "detect_reporter",
    "diagnose_serialization",
    "flatten_dict",
    "merge_dicts",
    "unflatten_dict",
    "unflattened_lookup",
    "validate_save_restore",
    "validate_warmstart",
    "wait_for_gpu",
    "warn_if_slow",
]


def __getattr__(name: str) -> Any:
    home = _NAMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
