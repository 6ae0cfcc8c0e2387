"""The text of a scrape: the process's instruments, and how things stand now, read from what the watches have shown.

A finished experiment has no series of its own any more. Of several active operators each shows the trials and usage
of its own experiments, so that sums over them are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.metrics.account import Account, account_families
from trialpod_operator.cluster.metrics.instruments import REGISTRY
from trialpod_operator.cluster.status.conditions import whole

__all__ = ["CONDITIONS", "CONTENT_TYPE", "STATES", "condition_of", "page"]

CONDITIONS = (
    "Running",
    "Waiting",
    "Suspended",
    "StorageUnavailable",
    "Stalled",
    "Succeeded",
    "Failed",
    "NotObserved",
)
"""Each experiment counts as exactly one of these."""

STATES = ("pending", "running", "paused", "terminated", "error")
"""Of trials; the keys of an experiment's status.trials."""


def condition_of(item: Mapping[str, Any]) -> str:
    """Return which of `CONDITIONS` holds for a TuneExperiment, the one that matters most first."""
    status = item.get("status") or {}
    conditions = {each["type"]: each for each in whole(status.get("conditions"))}
    true = {kind for kind, each in conditions.items() if each.get("status") == "True"}
    for kind in ("Succeeded", "Failed", "Stalled", "Suspended"):
        if kind in true:
            return kind
    ready = conditions.get("Ready")
    if ready is None:
        return "NotObserved"
    if "Ready" in true:
        return "Running"
    return "StorageUnavailable" if ready.get("reason") == Reason.STORAGE_UNAVAILABLE else "Waiting"


class _Current(Collector):
    """The families of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        yield from self._families
        yield from REGISTRY.collect()


def page(
    experiments: Mapping[str, Mapping[str, Any]],
    *,
    active: bool,
    queue_depth: int,
    open_count: int,
    connections: int,
    refused: int,
    shards: Mapping[int, int] | None = None,
    unserved: Mapping[int, float] | None = None,
    accounts: Iterable[Account] = (),
) -> str:
    """Return the whole text of a scrape.

    Args:
        experiments: the TuneExperiments as they were last seen, by "namespace/name".
        active: this operator has its Lease.
        queue_depth: experiments that wait for a reconcile pass.
        open_count: experiments in memory.
        connections: of attempts and others to the report service.
        refused: how many connections were refused, because there were too many.
        shards: how many experiments are open in each shard that this operator serves.
        unserved: the shards that no operator serves, each with the seconds since when.
        accounts: of them, and of those that have just finished.
    """
    families = [
        GaugeMetricFamily("trialpod_active", "1 when this operator is active, 0 when it waits.", active),
        *_shard_families(shards or {}, unserved or {}),
        GaugeMetricFamily("trialpod_queue_depth", "Experiments that wait for a reconcile pass.", queue_depth),
        GaugeMetricFamily("trialpod_open_experiments", "Experiments whose engine is in memory.", open_count),
        GaugeMetricFamily("trialpod_connections", "Connections to the report service.", connections),
        CounterMetricFamily(
            "trialpod_connections_refused", "Connections to the report service beyond its limits.", refused
        ),
        *_experiment_families(experiments),
        *account_families(accounts),
    ]
    return generate_latest(_Current(families)).decode()


def _shard_families(shards: Mapping[int, int], unserved: Mapping[int, float]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "trialpod_shard_experiments",
        "Open experiments of each shard that this operator serves.",
        labels=["shard"],
    )
    for number, count in shards.items():
        family.add_metric([str(number)], count)
    yield family
    family = GaugeMetricFamily(
        "trialpod_shard_unserved_seconds",
        "For how long no operator has served a shard, as far as this operator sees.",
        labels=["shard"],
    )
    for number, seconds in unserved.items():
        family.add_metric([str(number)], seconds)
    yield family


def _experiment_families(experiments: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    conditions = {key: condition_of(item) for key, item in experiments.items()}
    counts = Counter(conditions.values())
    family = GaugeMetricFamily(
        "trialpod_experiments", "Experiments, each by the one condition that matters most.", labels=["condition"]
    )
    for condition in CONDITIONS:
        family.add_metric([condition], counts[condition])
    yield family
    family = GaugeMetricFamily(
        "trialpod_trials",
        "Trials of experiments that have not finished.",
        labels=["namespace", "experiment", "state"],
    )
    for key, item in experiments.items():
        trials = (item.get("status") or {}).get("trials")
        if trials is None or conditions[key] in ("Succeeded", "Failed"):
            continue
        for state in STATES:
            family.add_metric([*key.split("/", 1), state], trials.get(state) or 0)
    yield family
