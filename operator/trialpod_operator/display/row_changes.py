"""What happened between two views of an experiment, as facts for a display."""

from __future__ import annotations

from collections.abc import Mapping

from trialpod_operator.display import events
from trialpod_operator.display.view import TrialRow

ENDED = ("TERMINATED", "ERROR")


def changes(
    before: Mapping[str, TrialRow], after: Mapping[str, TrialRow], metric: str | None, *, lost: str
) -> list[events.Event]:
    """Return what happened between two views of the trials.

    Args:
        before: the trials by name, as they were.
        after: the same, as they are.
        metric: the experiment's.
        lost: why an attempt ended that did not fail.
    """
    found = []
    for name, row in after.items():
        old = before.get(name)
        if row.attempts and (old is None or not old.attempts):
            found.append(events.trial_started(row))
        if row.status in ENDED and (old is None or old.status not in ENDED):
            found.append(events.trial_failed(row) if row.status == "ERROR" else events.trial_ended(row, metric))
        elif old is not None and row.failures + row.disruptions > old.failures + old.disruptions:
            disrupted = row.failures == old.failures
            found.append(
                events.trial_retried(row, reason=lost if disrupted else "see its log.txt", disruption=disrupted)
            )
    return found
