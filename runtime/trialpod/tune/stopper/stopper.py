"""The interface of stoppers: rules that end a trial, or the whole experiment, by its results.

As schedulers, stoppers run inside the engine: deterministic, and with state that is data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.plugins.phrases import evidence_text
from trialpod.tune.plugins.state import PlugIn, is_ours


class Stopper(PlugIn):
    """Base class: called with every result of every trial.

    A subclass defines ``__call__`` and `stop_all`. One that defines no `get_state` has its attributes pickled, in a
    script on the user's machine only.
    """

    ABOUT: tuple[str, ...] = ()
    """For the table of the documentation: what it ends, and when."""

    sees_config: bool = False
    """Whether its results also have the trial's config and id, and where it runs, as users' code may expect."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a class that judges in a way of its own be asked at every result, and be shown all of it."""
        super().__init_subclass__(**kwargs)
        if not is_ours(next(base for base in cls.__mro__ if "__call__" in vars(base))):
            cls.sees_config = True
        if (
            "horizons" not in vars(cls)
            and not vars(cls).keys().isdisjoint(("__call__", "stop_all"))
            and not is_ours(cls)
        ):
            cls.horizons = Stopper.horizons  # type: ignore[method-assign]

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return True to stop a trial.

        Args:
            trial_id: its id.
            result: what it reported, by flattened names; for a class of a user's also with "config", and with groups
                as dicts (`trialpod.tune.result.Metrics`).
        """
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Return True to stop the whole experiment."""
        raise NotImplementedError

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return where the trial must next wait for this stopper's word; an empty list means nowhere."""
        return [Horizon("training_iteration", EVERY_RESULT)]

    def reason(self) -> dict[str, Any]:
        """Return which rule was met by the latest True, as JSON data."""
        return {}

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:
        """Return why it ended something, as a phrase: "the timeout of 60 s is used up".

        Args:
            reason: what `reason` returned then.
        """
        name = str(reason.get("stopper", ""))
        return f"the stopper{' ' if name else ''}{name}{evidence_text(reason, ': ')}"

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError
