"""What an experiment's trials took, and what came of it: the account of resources, and the budgets of hours.

Definitions, for every resource that trials are given (cpu in cores, memory in bytes, devices by their names) and for
``trial`` itself, of which every attempt has 1:

* An attempt *takes* its amount of a resource from the event that its process took up its work until the event of its
  end: both times are those of the journal. Waiting for a place, pulling images and starting count nothing.
* When an attempt has ended, what it took counts as used, and is divided at its latest committed checkpoint. The part
  before is *kept*. The part after is

  - `LOST` when it will be done again without a fault of the trial's own: the attempt was disrupted (its node, its
    process or the checkpoint to start from were taken away), or was paused without having saved its latest result;
  - `FAILED` when the attempt failed;
  - kept, when the attempt ended as it should: it completed, obeyed a decision, or was reset to another trial's state.

* What is kept is decided when the *trial* ends: `FAILED` if it ends in ERROR; `STOPPED` if it was cut short, that is
  by a scheduler before its last rung, by the user, or by the end of the experiment's budget; else `USEFUL`: it came
  to its own end, or to the one that a stopper or the scheduler's max_t had set for it. Until then it is *open*.

So ``used = useful + stopped + lost + failed + open``. What was decided stays so: a failed trial that the user has
retried adds what it takes from then on, and a checkpoint that turns out damaged takes nothing back.

Invariants: everything follows from the events alone, so a replay gives the same account, and what happened once
counts once, whatever process applied it; no sum of an outcome ever falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.engine.choices import is_early_stop
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.state import InUse, State
from trialpod_operator.engine.trial import ERROR, Trial

USEFUL, STOPPED, LOST, FAILED = "useful", "stopped", "lost", "failed"
OUTCOMES = (USEFUL, STOPPED, LOST, FAILED)

TRIAL = "trial"
"""The resource of which each attempt has 1: its hours are trial hours."""

HOUR_S = 3600.0

SLACK_S = 0.01
"""Seconds of one device by which a budget counts as used up early: sums of times are not exact."""

Amounts = dict[str, float]


def start_work(state: State, trial: Trial, resources: Mapping[str, float]) -> None:
    """The current attempt's process has started its work, with these amounts. Repeated: no change."""
    if trial.current.working_since is None:
        trial.start_work(state.clock.now, {**resources, TRIAL: 1.0})
        if state.in_use is not None:
            state.in_use.add(trial.current.resources, state.clock.now)


def end_attempt(state: State, trial: Trial, now: float, outcome: str | None) -> None:
    """Count what the attempt used that ended at `now`.

    `outcome` is that of the part after its latest checkpoint; None: it is kept.
    """
    current = trial.current
    if current.working_since is None:
        return
    whole = max(0.0, now - current.working_since)
    rest = 0.0 if outcome is None else min(whole, max(0.0, now - current.last_saved_at))
    state.account.add_spent({name: amount * whole for name, amount in current.resources.items()})
    if outcome is not None:
        state.account.add_outcome(outcome, {name: amount * rest for name, amount in current.resources.items()})
    kept = dict(trial.kept)
    for name, amount in current.resources.items():
        kept[name] = kept.get(name, 0.0) + amount * (whole - rest)
    if state.in_use is not None:
        state.in_use.remove(current.resources, current.working_since)
    trial.end_work(kept)


def end_trial(state: State, trial: Trial, status: str) -> None:
    """Decide the outcome of what is kept of a trial, which ends in `status`."""
    if trial.kept:
        early = trial.stopped and is_early_stop(trial.stop_reason)
        state.account.add_outcome(FAILED if status == ERROR else STOPPED if early else USEFUL, trial.kept)


def saved_all(trial: Trial) -> bool:
    """Return whether the trial can continue without doing anything again."""
    checkpoint = trial.own_checkpoint
    return checkpoint is not None and checkpoint.iteration >= trial.iteration


def in_use(state: State) -> Amounts:
    """Return what the running attempts have at this moment."""
    return dict(_in_use(state).amounts)


def used(state: State, now: float) -> Amounts:
    """Return the resource-seconds that all attempts have taken so far, running ones included."""
    running = _in_use(state)
    total = dict(state.account.spent)
    for name, amount in running.amounts.items():
        total[name] = total.get(name, 0.0) + max(0.0, amount * now - running.since[name])
    return total


def _in_use(state: State) -> InUse:
    """Return what the running attempts have; from the first time on, each change of one keeps it up to date."""
    if state.in_use is None:
        state.in_use = InUse()
        for trial in state.running.values():
            if trial.current.working_since is not None:
                state.in_use.add(trial.current.resources, trial.current.working_since)
    return state.in_use


# -- budgets ------------------------------------------------------------------------------------------------------


def limits(settings: Settings) -> Iterator[tuple[str, str, float]]:
    """Return the budgets that are set: the field of the spec, what it counts, and the hours."""
    if settings.max_trial_hours is not None:
        yield "maxTrialHours", "trial", settings.max_trial_hours
    if settings.max_gpu_hours is not None:
        yield "maxGpuHours", "GPU", settings.max_gpu_hours


def used_up(state: State, now: float) -> dict[str, Any] | None:
    """Return which budget of hours is used up, as a reason for the end; None when there is something left of all."""
    for field, kind, hours in limits(state.required_settings):
        taken = _taken(state, kind, now)
        if taken + SLACK_S >= hours * HOUR_S:
            return {"source": "budget", "budget": field, "of": kind, "hours": hours, "used": taken / HOUR_S}
    return None


def runs_out_at(state: State, now: float) -> float | None:
    """Return when the first budget is used up if all continues as it is, in seconds since the epoch; None: never."""
    ends = []
    for _, kind, hours in limits(state.required_settings):
        amounts = _in_use(state).amounts
        rate = sum(amounts[name] for name in _counted(amounts, kind))
        if rate > 0:
            ends.append(now + max(0.0, hours * HOUR_S - _taken(state, kind, now)) / rate)
    return min(ends, default=None)


def hours_used(state: State, kind: str, now: float) -> float:
    """Return the hours used of what a budget counts: "trial" or "GPU"."""
    return _taken(state, kind, now) / HOUR_S


def _taken(state: State, kind: str, now: float) -> float:
    """Return the device-seconds taken of what a budget counts, as `used` has them."""
    spent, running = state.account.spent, _in_use(state)
    total = 0.0
    for name in _counted({**spent, **running.amounts}, kind):
        taken = running.amounts[name] * now - running.since[name] if name in running.amounts else 0.0
        total += spent.get(name, 0.0) + max(0.0, taken)
    return total


def _counted(names: Mapping[str, float], kind: str) -> list[str]:
    """Return which of these resources a budget counts."""
    if kind == "trial":
        return [TRIAL] if TRIAL in names else []
    return sorted(name for name in names if is_gpu(name))


def taken_by(trial: Trial, kind: str, now: float) -> float:
    """Return the device-seconds that a trial which has not ended took of what a budget counts, lost ones left out."""
    current, total = trial.current, 0.0
    running = current.resources if current.working_since is not None else {}
    for name in _counted({**trial.kept, **running}, kind):
        total += trial.kept.get(name, 0.0)
        if name in running and current.working_since is not None:
            total += running[name] * max(0.0, now - current.working_since)
    return total


# -- for people ---------------------------------------------------------------------------------------------------

GIB = float(1024**3)


def hours(account: Mapping[str, Mapping[str, float]], spent: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the account by resource, in hours; what is counted in bytes is in GiB-hours.

    Args:
        account: resource-seconds by outcome and resource.
        spent: resource-seconds that ended attempts have taken.

    Returns:
        For each resource "used" and the four outcomes; "used" is more by what is still open.
    """
    return {
        name: {
            "used": _in_hours(name, seconds),
            **{outcome: _in_hours(name, account.get(outcome, {}).get(name, 0.0)) for outcome in OUTCOMES},
        }
        for name, seconds in sorted(spent.items(), key=lambda item: (item[0] != TRIAL, item[0]))
    }


def in_bytes(resource: str) -> bool:
    """Return whether a resource is counted in bytes."""
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def _in_hours(name: str, seconds: float) -> float:
    return seconds / HOUR_S / (GIB if in_bytes(name) else 1.0)


def resource_names(state: State, more: Iterable[str] = ()) -> list[str]:
    """Return the resources that the account knows, or will soon, trial first; `more` are those asked for."""
    known = {TRIAL, *more, *state.account.spent, *_in_use(state).amounts}
    return sorted(known, key=lambda name: (name != TRIAL, name))
