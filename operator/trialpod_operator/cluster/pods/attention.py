"""Which attempts a reconcile pass looks at: those that something happened to, and now and then all of them.

An event concerns one attempt, and there may be thousands. So a pass of a large experiment looks at those that were
noted since the one before; a *sweep* looks at all. There is one when a time has come that any attempt waits for, when
the specification was changed, and at the latest when the pass before it says so. Pods without an attempt are removed
by sweeps, and by passes in between that look only at those that were noted for it: with ten ends per second, and a
sweep each second for them, a step of a pass with 1,000 attempts took twice as long at p99 (2026-11-28).

Invariant: a sweep finds whatever there is to do, with or without an event; a pass in between only finds some of it
sooner. Few attempts, groups, reused pods and queues are swept in each pass. Owned by the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trialpod_operator.cluster.pods.binding import PodBinding

MAX_FEW = 64
"""Maximum number of attempts that are swept in each pass."""

REMOVAL_S = 1.0
REMOVAL_S_PER_ATTEMPT = 0.0004
"""Interval at which pods without an attempt are removed; it is longer where there are more attempts to compare."""


class Attention:
    """Which attempts a pass visits.

    Attributes:
        noted: ids of trials that something happened to since the last pass.
    """

    def __init__(self) -> None:
        self.noted: set[str] = set()
        self._sweep_at = -math.inf
        self._removal_at = math.inf

    def add(self, trial_id: str) -> None:
        """Something happened to the trial, its attempt or its pod."""
        self.noted.add(trial_id)

    def record_removal(self, now: float, attempts: int) -> None:
        """There may be a pod to remove."""
        self.remove_by(now + max(REMOVAL_S, attempts * REMOVAL_S_PER_ATTEMPT))

    def remove_by(self, at: float) -> None:
        """Remove pods without an attempt by that time, in seconds since the epoch."""
        self._removal_at = min(self._removal_at, at)

    def sweep_by(self, at: float) -> None:
        """Visit all attempts by that time, in seconds since the epoch."""
        self._sweep_at = min(self._sweep_at, at)

    @property
    def has_sweep(self) -> bool:
        """Whether a time for the next sweep is set."""
        return self._sweep_at < math.inf

    @property
    def due_at(self) -> float:
        """When the next sweep or removal is due, in seconds since the epoch."""
        return min(self._sweep_at, self._removal_at)

    def take(self, bindings: Mapping[str, PodBinding], now: float, *, every: bool) -> Look:
        """Return what this pass looks at.

        Args:
            bindings: all attempts, by trial.
            now: seconds since the epoch.
            every: it sweeps, whatever the time.
        """
        noted, self.noted = self.noted, set()
        if every or len(bindings) <= MAX_FEW or now >= self._sweep_at:
            self._sweep_at = self._removal_at = math.inf
            return Look(bindings, None, removes=True)
        removes = now >= self._removal_at
        if removes:
            self._removal_at = math.inf
        return Look(bindings, noted, removes=removes)


class Look:
    """What one pass looks at.

    Args:
        bindings: all attempts, by trial, as they change.
        noted: ids of the trials that it looks at; None = all, it is a sweep.
        removes: it removes pods without an attempt, which a sweep always does.
    """

    def __init__(self, bindings: Mapping[str, PodBinding], noted: set[str] | None, *, removes: bool) -> None:
        self._all = bindings
        self._noted = noted
        self.removes = removes

    @property
    def sweeps(self) -> bool:
        """Whether it looks at all."""
        return self._noted is None

    @property
    def bindings(self) -> list[PodBinding]:
        """The attempts as they are now: some end during a pass, and others begin."""
        if self._noted is None:
            return list(self._all.values())
        return [self._all[trial_id] for trial_id in sorted(self._noted) if trial_id in self._all]

    def among(self, trial_ids: set[str]) -> set[str]:
        """Return those of these trials that it looks at."""
        return set(trial_ids) if self._noted is None else trial_ids & self._noted
