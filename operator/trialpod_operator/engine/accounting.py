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
  - kept, when the attempt ended as it should: it completed, obeyed a decision, or was told to follow another trial.

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
from typing import TYPE_CHECKING, Any

from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.engine.decisions import cut_short
from trialpod_operator.engine.trial import ERROR, Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine
    from trialpod_operator.engine.settings import Settings

USEFUL, STOPPED, LOST, FAILED = "useful", "stopped", "lost", "failed"
OUTCOMES = (USEFUL, STOPPED, LOST, FAILED)

TRIAL = "trial"
"""The resource of which each attempt has 1: its hours are trial hours."""

HOUR_S = 3600.0

SLACK_S = 0.01
"""A budget that is used up to so many seconds of one device is used up: sums of times are not exact."""

Amounts = dict[str, float]


def begin(engine: Engine, trial: Trial, resources: Mapping[str, float]) -> None:
    """The current attempt's process has taken up its work, with these amounts of resources. Said again: no change."""
    if trial.began_at is None:
        trial.began_at = trial.saved_at = engine.state.flags.now
        trial.given = {**resources, TRIAL: 1.0}
        engine.state.in_use = None


def saved(engine: Engine, trial: Trial) -> None:
    """The current attempt has committed a checkpoint."""
    trial.saved_at = engine.state.flags.now


def end_attempt(engine: Engine, trial: Trial, now: float, outcome: str | None) -> None:
    """Count what the attempt took, which ended at `now`.

    Args:
        engine: the experiment.
        trial: whose attempt it was.
        now: seconds since the epoch.
        outcome: what becomes of the part after its latest checkpoint; None: it is kept.
    """
    if trial.began_at is None:
        return
    whole = max(0.0, now - trial.began_at)
    rest = 0.0 if outcome is None else min(whole, max(0.0, now - trial.saved_at))
    spent = engine.state.flags.spent
    held = dict(trial.held)
    for name, amount in trial.given.items():
        spent[name] = spent.get(name, 0.0) + amount * whole
        held[name] = held.get(name, 0.0) + amount * (whole - rest)
    trial.held = held
    if outcome is not None:
        _add(engine, outcome, {name: amount * rest for name, amount in trial.given.items()})
    trial.began_at, trial.saved_at, trial.given = None, 0.0, {}
    engine.state.in_use = None


def end_trial(engine: Engine, trial: Trial, status: str) -> None:
    """Decide what becomes of what is kept of a trial, which ends in `status`."""
    if trial.held:
        early = trial.stopped and cut_short(trial.stop_reason)
        _add(engine, FAILED if status == ERROR else STOPPED if early else USEFUL, trial.held)
        trial.held = {}


def saved_all(trial: Trial) -> bool:
    """Return whether the trial can go on without doing anything again."""
    checkpoint = trial.own_checkpoint
    return checkpoint is not None and checkpoint.iteration >= trial.iteration


def _add(engine: Engine, outcome: str, seconds: Mapping[str, float]) -> None:
    account = engine.state.flags.account.setdefault(outcome, {})
    for name, amount in seconds.items():
        account[name] = account.get(name, 0.0) + amount


def in_use(engine: Engine) -> Amounts:
    """Return what the running attempts have at this moment."""
    return dict(_in_use(engine)[0])


def used(engine: Engine, now: float) -> Amounts:
    """Return the resource-seconds that all attempts have taken so far, running ones included."""
    amounts, since = _in_use(engine)
    total = dict(engine.state.flags.spent)
    for name, amount in amounts.items():
        total[name] = total.get(name, 0.0) + max(0.0, amount * now - since[name])
    return total


def _in_use(engine: Engine) -> tuple[Amounts, Amounts]:
    """Return the amounts in use, and of each the sum of amount times beginning."""
    state = engine.state
    if state.in_use is None:
        amounts: Amounts = {}
        since: Amounts = {}
        for trial in state.running_trials():  # in their order, so that the sums are the same in a replay
            for name, amount in trial.given.items():
                amounts[name] = amounts.get(name, 0.0) + amount
                since[name] = since.get(name, 0.0) + amount * (trial.began_at or 0.0)
        state.in_use = amounts, since
    return state.in_use


# -- budgets ------------------------------------------------------------------------------------------------------


def limits(settings: Settings) -> Iterator[tuple[str, str, float]]:
    """Return the budgets that are set: the field of the spec, what it counts, and the hours."""
    if settings.max_trial_hours is not None:
        yield "maxTrialHours", "trial", settings.max_trial_hours
    if settings.max_gpu_hours is not None:
        yield "maxGpuHours", "GPU", settings.max_gpu_hours


def used_up(engine: Engine, now: float) -> dict[str, Any] | None:
    """Return which budget of hours is used up, as a reason for the end; None when there is something left of all."""
    for field, kind, hours in limits(engine.settings):
        taken = _taken(engine, kind, now)
        if taken + SLACK_S >= hours * HOUR_S:
            return {"source": "budget", "budget": field, "of": kind, "hours": hours, "used": taken / HOUR_S}
    return None


def runs_out_at(engine: Engine, now: float) -> float | None:
    """Return when the first budget is used up if all goes on as it is, in seconds since the epoch; None: never."""
    ends = []
    for _, kind, hours in limits(engine.settings):
        amounts = _in_use(engine)[0]
        rate = sum(amounts[name] for name in _counted(amounts, kind))
        if rate > 0:
            ends.append(now + max(0.0, hours * HOUR_S - _taken(engine, kind, now)) / rate)
    return min(ends, default=None)


def hours_used(engine: Engine, kind: str, now: float) -> float:
    """Return the hours used of what a budget counts: "trial" or "GPU"."""
    return _taken(engine, kind, now) / HOUR_S


def _taken(engine: Engine, kind: str, now: float) -> float:
    """Return the device-seconds taken of what a budget counts, as `used` has them."""
    spent, (amounts, since) = engine.state.flags.spent, _in_use(engine)
    total = 0.0
    for name in _counted({**spent, **amounts}, kind):
        running = amounts[name] * now - since[name] if name in amounts else 0.0
        total += spent.get(name, 0.0) + max(0.0, running)
    return total


def _counted(names: Mapping[str, float], kind: str) -> list[str]:
    """Return which of these resources a budget counts."""
    if kind == "trial":
        return [TRIAL] if TRIAL in names else []
    return sorted(name for name in names if is_gpu(name))


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


def resource_names(engine: Engine, more: Iterable[str] = ()) -> list[str]:
    """Return the resources that the account knows, or will soon, trial first; `more` are those asked for."""
    known = {TRIAL, *more, *engine.state.flags.spent, *_in_use(engine)[0]}
    return sorted(known, key=lambda name: (name != TRIAL, name))
