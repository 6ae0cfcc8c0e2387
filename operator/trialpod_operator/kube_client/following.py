"""Follows an experiment in a cluster to its end, on the display that a local run has.

Invariants: it only reads. What blocks the experiment is reported once per reason. While the cluster is unreachable,
or its API server refuses requests for the moment, the view keeps its state, and the request is retried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.reasons import Reason
from trialpod_operator.display import events
from trialpod_operator.kube_client.api import ClusterUnreachableError
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.view import condition, finished, is_true, view_of

if TYPE_CHECKING:
    from trialpod_operator.display.base import Display
    from trialpod_operator.display.view import TrialRow

Json = dict[str, Any]

POLL_INTERVAL_S = 1.0
SLOW_POLL_MIN_TRIALS, SLOW_POLL_INTERVAL_S = 300, 10.0
"""From this number of trials on they are listed less often."""

START_TIMEOUT_S = 3.0
"""Maximum time to wait for the first status before anything is shown."""

OBSERVE_TIMEOUT_S = 20.0
"""Maximum time until the operator has written a status; then something is wrong with it."""

STALLED_TIMEOUT_S = 120.0
"""Maximum time to wait for a user to correct what has stalled the experiment."""


def follow(
    api: Experiments,
    item: Json,
    display: Display,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    each: Callable[[Json, list[Json]], None] = lambda _item, _trials: None,
) -> Json:
    """Show an experiment until it has ended; return it as it was then.

    Args:
        api: its namespace.
        item: the TuneExperiment.
        display: shows it.
        clock: seconds since the epoch.
        sleep: waits some seconds.
        each: called with the experiment and its trials whenever they were listed.

    Raises:
        TrialpodError: it has stalled, or was deleted meanwhile, or may not be read.
    """
    name, uid = str(item["metadata"]["name"]), item["metadata"].get("uid")
    generation = int(item["metadata"].get("generation") or 1)
    begun = clock()
    stalled_at: float | None = None
    listed_at = 0.0
    trials: list[Json] = []
    rows: dict[str, TrialRow] = {}
    last_reason = ""
    started = False
    while True:
        now = clock()
        status = item.get("status") or {}
        observed = int(status.get("observedGeneration", -1)) >= generation
        over = observed and finished(item)
        # How many trials there will be, the operator has to say first.
        if not started and ("trials" in status or now - begun >= START_TIMEOUT_S):
            display.start(view_of(item, trials, now=now, rows=display.rows))
            started = True
        interval_s = SLOW_POLL_INTERVAL_S if len(trials) >= SLOW_POLL_MIN_TRIALS else POLL_INTERVAL_S
        listed = False
        if started and (over or now - listed_at >= interval_s):
            with _unless_temporary():
                trials, listed_at, listed = api.trials(name), now, True
        if listed:
            view = view_of(item, trials, now=now, rows=None)
            fresh = {row.name: row for row in view.rows}
            for event in events.changes(rows, fresh, view.metric, lost="the cluster ended its pod"):
                display.event(event)
            rows = fresh
            each(item, trials)
        view = view_of(item, trials, now=now, rows=display.rows)
        if over and listed:
            display.finish(view)
            return item
        if started:
            display.update(view)
        why = blocking_reason(item, api.namespace, waited=now - begun, observed=observed)
        # The words change with every node that comes and goes; the reason is worth telling once.
        if why and why[0] != last_reason:
            display.event(events.warning(why[1]))
        last_reason = why[0] if why else ""
        if not is_true(item, "Stalled"):
            stalled_at = None
        else:
            stalled_at = stalled_at or now
            fatal = condition(item, "Stalled").get("reason") == Reason.INVALID_SPEC
            if observed and (fatal or now - stalled_at > STALLED_TIMEOUT_S):
                raise TrialpodError(
                    f"the experiment {name} has stalled: {condition(item, 'Stalled').get('message')}. Correct "
                    f"that and run this again, or delete the experiment: trialpod delete {name} -n {api.namespace}"
                )
        sleep(POLL_INTERVAL_S)
        with _unless_temporary():
            found = api.find(name)
            if found is None or found["metadata"].get("uid") != uid:
                raise TrialpodError(
                    f"the TuneExperiment {name} was deleted while this waited for it; what was stored until then "
                    "stays, unless its deletionPolicy is Delete"
                )
            item = found


@contextlib.contextmanager
def _unless_temporary() -> Iterator[None]:
    """Suppress the error of a request that may succeed when it is repeated."""
    try:
        yield
    except ClusterUnreachableError:
        return
    except ApiError as error:
        if not error.temporary:
            raise


def blocking_reason(
    item: Mapping[str, Any], namespace: str, *, waited: float, observed: bool
) -> tuple[str, str] | None:
    """Return why the experiment, or some of its trials, do not proceed: the reason, and a sentence.

    Args:
        item: the TuneExperiment.
        namespace: its namespace.
        waited: for the operator to look at it, in seconds.
        observed: whether the operator has seen its latest change.
    """
    if not observed:
        if waited < OBSERVE_TIMEOUT_S:
            return None
        text = (
            "no operator has seen it yet: is one running that serves this namespace? "
            f"`trialpod check -n {namespace}` finds out"
        )
        return "Unnoticed", text
    for kind, bad in (("Stalled", "True"), ("Ready", "False"), ("Suspended", "True")):
        found = condition(item, kind)
        if found.get("status") == bad and found.get("reason") != Reason.STARTING:
            return str(found.get("reason")), f"{found.get('reason')}: {found.get('message')}"
    waiting = (item.get("status") or {}).get("waiting")
    return (str(waiting.get("reason")), f"{waiting.get('reason')}: {waiting.get('message')}") if waiting else None
