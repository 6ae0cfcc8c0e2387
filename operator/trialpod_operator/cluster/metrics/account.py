"""What the metrics say of each open experiment: the account of its resources, its budgets, and how long it waits.

The account is the engine's (`trialpod_operator.engine.accounting`), so it survives the operator: after a restart the
counters continue from the storage. A finished experiment's series stay for `KEPT_S`, so that its last trials
are scraped too, and are gone then.

Invariants: no series of a counter falls while this process lives, even if the engine was reopened from a storage
that had not all of it; every series of an open experiment is there from the beginning, with 0, because Prometheus
takes the first value of a series for no increase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from trialpod_operator.engine import accounting
from trialpod_operator.engine.engine import Engine

KEPT_S = 900.0
"""Time for which a finished experiment's account is shown: many times an interval of scraping."""

MAX_RESOURCES = 16
"""Maximum number of resources of an experiment that have series."""

_WHOSE = ("namespace", "experiment")


@dataclass
class Account:
    """One experiment as the metrics show it.

    Attributes:
        key: "namespace/name".
        queue: the queue that its pods wait in, "" when there is none.
        decided: resource-seconds by resource and outcome.
        open: resource-seconds that are not decided yet, by resource.
        in_use: what running attempts have, by resource.
        pending_s: how long the trial has waited that waits longest for its pod to run; 0 = none waits.
        budgets: how much of each budget of hours is used, from 0 to 1, by the field of the spec.
    """

    key: str
    queue: str
    decided: dict[tuple[str, str], float]
    open: dict[str, float] = field(default_factory=dict)
    in_use: dict[str, float] = field(default_factory=dict)
    pending_s: float = 0.0
    budgets: dict[str, float] = field(default_factory=dict)


class AccountView:
    """Keeps what was shown of one experiment, so that it neither falls nor vanishes at once.

    Args:
        key: "namespace/name".
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._last: Account | None = None
        self._seen_at = 0.0

    def observe(
        self, engine: Engine, now: float, *, queue: str, asked: Iterable[str], waits_since: float | None
    ) -> Account:
        """Return the account of an open experiment.

        Args:
            engine: the experiment's.
            now: seconds since the epoch.
            queue: the queue that its pods wait in.
            asked: names of the resources that its manifest asks for.
            waits_since: since when the trial waits that waits longest for its pod; None when none does.
        """
        account = engine.state.account.outcomes
        before = self._last.decided if self._last is not None else {}
        decided: dict[tuple[str, str], float] = {}
        names = accounting.resource_names(engine.state, asked)[:MAX_RESOURCES]
        for name in names:
            for outcome in accounting.OUTCOMES:
                value = account.get(outcome, {}).get(name, 0.0)
                decided[name, outcome] = max(value, before.get((name, outcome), 0.0))
        used = accounting.used(engine.state, now)
        counted = {
            name: sum(account.get(outcome, {}).get(name, 0.0) for outcome in accounting.OUTCOMES) for name in names
        }
        budgets = {}
        if engine.state.settings is not None:
            for name, kind, hours in accounting.limits(engine.state.required_settings):
                budgets[name] = accounting.hours_used(engine.state, kind, now) / hours if hours else 1.0
        self._seen_at = now
        self._last = Account(
            key=self._key,
            queue=queue,
            decided={**before, **decided},
            open={name: max(0.0, used[name] - counted[name]) for name in names if name in used},
            in_use={name: amount for name, amount in accounting.in_use(engine.state).items() if name in names},
            pending_s=max(0.0, now - waits_since) if waits_since is not None else 0.0,
            budgets=budgets,
        )
        return self._last

    def last(self, now: float) -> Account | None:
        """Return what is still to be shown of an experiment that is not open: what was decided."""
        if self._last is None or now - self._seen_at > KEPT_S:
            return None
        return Account(key=self._key, queue=self._last.queue, decided=self._last.decided)


def account_families(accounts: Iterable[Account]) -> Iterator[Metric]:
    """Return the accounts as families of metrics."""
    decided = CounterMetricFamily(
        "trialpod_resource_seconds_total",
        "Resource-seconds used by trials, by outcome; counted once the outcome is known.",
        labels=[*_WHOSE, "queue", "resource", "outcome"],
    )
    undecided = GaugeMetricFamily(
        "trialpod_resource_seconds_undecided",
        "Resources that trials took, times seconds, of which it is not decided yet what comes of them.",
        labels=[*_WHOSE, "queue", "resource"],
    )
    in_use = GaugeMetricFamily(
        "trialpod_resources_in_use",
        "Resources that running attempts have now: cores, bytes, devices; of trial, how many run.",
        labels=[*_WHOSE, "queue", "resource"],
    )
    pending = GaugeMetricFamily(
        "trialpod_pending_seconds",
        "Longest current wait of a trial for its pod.",
        labels=_WHOSE,
    )
    budgets = GaugeMetricFamily(
        "trialpod_budget_used_ratio",
        "How much of a budget of hours is used, running trials included.",
        labels=[*_WHOSE, "budget"],
    )
    for account in accounts:
        whose = account.key.split("/", 1)
        for (name, outcome), value in account.decided.items():
            decided.add_metric([*whose, account.queue, name, outcome], value)
        for name, value in account.open.items():
            undecided.add_metric([*whose, account.queue, name], value)
        for name, value in account.in_use.items():
            in_use.add_metric([*whose, account.queue, name], value)
        pending.add_metric(whose, account.pending_s)
        for name, ratio in account.budgets.items():
            budgets.add_metric([*whose, name], ratio)
    return iter((decided, undecided, in_use, pending, budgets))
