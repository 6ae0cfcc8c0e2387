"""Stops a trial when a function of the user says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError, WrongTypeError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.stopper.stopper import Stopper


@algorithm("function", by_name=False)
class FunctionStopper(Stopper):
    """Wraps ``function(trial_id, result) -> bool``. Nothing is known of it, so every result is a horizon."""

    sees_config = True

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        if not self.is_valid_function(function):
            raise WrongTypeError(
                f"a stop function must be callable as function(trial_id, result), got {function!r}",
                parameter="function",
            )
        self._function = function
        self._reason: dict[str, Any] = {}

    @classmethod
    def is_valid_function(cls, function: Any) -> bool:
        """Return whether `function` can be used.

        Raises:
            InvalidInputError: it looks like a stopper but is none.
        """
        if not callable(function) or isinstance(function, Stopper):
            return False
        if hasattr(function, "stop_all"):
            raise InvalidInputError("an object with a stop_all method must be a subclass of tune.Stopper")
        return True

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return what the function says."""
        if not self._function(trial_id, result):
            return False
        self._reason = {
            "stopper": "function",
            "function": getattr(self._function, "__name__", type(self._function).__name__),
        }
        return True

    def stop_all(self) -> bool:
        """Return False: only trials are stopped."""
        return False

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        return f"the function {reason.get('function')} said so"

    def reason(self) -> dict[str, Any]:
        """Return the name of the function, after a True."""
        return dict(self._reason)

    def get_state(self) -> dict[str, Any]:
        """Return nothing: what the function keeps is its own."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Accept what `get_state` returned."""
