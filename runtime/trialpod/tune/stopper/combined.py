"""Several stoppers at once: any of them can stop."""

from __future__ import annotations

from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.stopper.stopper import Stopper


class CombinedStopper(Stopper):
    """Stops when any of its stoppers does.

    Each of them sees every result, also one at which another already stops (Ray leaves the later ones out, so that
    what they count depends on their order).
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise InvalidInputError(
                    f"CombinedStopper takes stoppers, got {stopper!r}; wrap a function in FunctionStopper"
                )
        self._stoppers = stoppers
        self.sees_config = any(stopper.sees_config for stopper in stoppers)
        self._stopped_trial: Stopper | None = None

    @property
    def stoppers(self) -> tuple[Stopper, ...]:
        """The stoppers, in the order in which they were given."""
        return self._stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Ask each stopper; return True when any says so."""
        stopping = [stopper for stopper in self._stoppers if stopper(trial_id, result)]
        if stopping:
            self._stopped_trial = stopping[0]
        return bool(stopping)

    def stop_all(self) -> bool:
        """Return True when any stopper stops the experiment."""
        return any(stopper.stop_all() for stopper in self._stoppers)

    def observe(self, now: float, *, active: bool = True) -> None:
        """Pass the time on to the stoppers that take it."""
        for stopper in self._stoppers:
            if (observe := getattr(stopper, "observe", None)) is not None:
                observe(now, active=active)

    @property
    def remaining(self) -> float | None:
        """Seconds until the first of the stoppers with a time limit stops; None when there is none."""
        left = [getattr(stopper, "remaining", None) for stopper in self._stoppers]
        return min((seconds for seconds in left if seconds is not None), default=None)

    def on_attempt_start(self, trial_id: str) -> None:
        """Pass the start of an attempt on."""
        for stopper in self._stoppers:
            if (hook := getattr(stopper, "on_attempt_start", None)) is not None:
                hook(trial_id)

    def on_trial_end(self, trial_id: str) -> None:
        """Pass the end of a trial on."""
        for stopper in self._stoppers:
            if (hook := getattr(stopper, "on_trial_end", None)) is not None:
                hook(trial_id)

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return the horizons of all, without repeats."""
        return list(dict.fromkeys(h for stopper in self._stoppers for h in stopper.horizons(trial_id)))

    def reason(self) -> dict[str, Any]:
        """Return the reason of the stopper that ends the experiment, else of the latest that ended a trial."""
        for stopper in self._stoppers:
            if stopper.stop_all():
                return stopper.reason()
        return self._stopped_trial.reason() if self._stopped_trial is not None else {}

    def get_state(self) -> dict[str, Any]:
        """Return the states in the order of the stoppers."""
        return {"version": 1, "stoppers": [stopper.get_state() for stopper in self._stoppers]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore each stopper.

        Raises:
            InvalidInputError: the state is that of another number of stoppers.
        """
        if len(state["stoppers"]) != len(self._stoppers):
            raise InvalidInputError(
                f"the saved state is that of {len(state['stoppers'])} stoppers, there are {len(self._stoppers)}; "
                "continue with the stoppers that the experiment was started with"
            )
        for stopper, saved in zip(self._stoppers, state["stoppers"], strict=True):
            stopper.set_state(saved)
