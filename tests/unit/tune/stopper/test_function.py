"""FunctionStopper wraps a function of the user."""

from __future__ import annotations

from typing import Any

import pytest
from stopper_checks import first_stop, met, reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import FunctionStopper, NoopStopper


def low(trial_id: str, data: dict[str, Any]) -> bool:
    return bool(data["loss"] < 0.2)


def test_the_function_is_asked_about_every_result() -> None:
    stopper = FunctionStopper(low)
    assert met(stopper, "a", result(1, 0.5))
    assert first_stop(stopper, [0.5, 0.1]) == 2
    assert stopper.reason() == {"stopper": "function", "function": "low"}
    assert not stopper.stop_all()
    reloaded(stopper, FunctionStopper(low))


def test_what_is_no_function_is_refused() -> None:
    class AlmostAStopper:
        def __call__(self, trial_id: str, data: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return False

    for wrong in (3, NoopStopper()):
        with pytest.raises(InvalidInputError, match="stop function"):
            FunctionStopper(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="subclass"):
        FunctionStopper(AlmostAStopper())
