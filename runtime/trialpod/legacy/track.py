"""``tune.track``: the oldest way to report without an argument, ``track.log(loss=0.1)``."""

from __future__ import annotations

from typing import Any

from trialpod.tune import session

__all__ = ["init", "log", "shutdown", "trial_dir", "trial_id", "trial_name"]


def log(**metrics: Any) -> None:
    """Report one result; see `tune.report`."""
    session.report(None, **metrics)


def trial_dir() -> str | None:
    """Return the path or URI of the trial's directory, None outside a trial."""
    return session.get_trial_dir()


def trial_name() -> str | None:
    """Return the trial's name, None outside a trial."""
    return session.get_trial_name()


def trial_id() -> str | None:
    """Return the trial's id, None outside a trial."""
    return session.get_trial_id()


def init(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the runner makes the session."""


def shutdown() -> None:
    """Do nothing: the runner ends the session."""
