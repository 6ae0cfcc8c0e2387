"""What users ask of an experiment in its annotations: to stop, and to try failed trials again. Pure.

`trialpod.dev/retry` is acted on once for each value: the value that was acted on last is in the journal and in
``status.retried``, so that it may stay in a manifest. It is any word, such as "1", followed, after spaces, by the
ids of the selected trials (none: all that have failed) and perhaps `from-scratch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trialpod_operator.cluster import names

FROM_SCRATCH = "from-scratch"

MAX_VALUE = 16 * 1024
"""Characters of the annotation that count."""

MAX_GENERATION_DIGITS = 20
"""More than any generation has; Python reads no number of more than 4,300 digits."""


@dataclass(frozen=True)
class Retry:
    """A request to try failed trials again.

    Attributes:
        value: the whole annotation, by which it is known.
        trial_ids: those selected; empty = all that have failed.
        from_scratch: their checkpoints are forgotten.
    """

    value: str
    trial_ids: tuple[str, ...]
    from_scratch: bool


def retry_of(metadata: Mapping[str, Any]) -> Retry | None:
    """Return what an experiment's annotation asks to be retried, None when there is nothing."""
    value = str((metadata.get("annotations") or {}).get(names.RETRY_ANNOTATION, "")).strip()[:MAX_VALUE]
    if not value or stop_is_asked(metadata):
        return None  # what is to stop is not retried
    _, *words = value.split()
    return Retry(value, tuple(word for word in words if word != FROM_SCRATCH), FROM_SCRATCH in words)


def retry_is_pending(item: Mapping[str, Any]) -> bool:
    """Return whether an experiment is asked to try failed trials again, and no operator has done so yet."""
    retry = retry_of(item["metadata"])
    return retry is not None and retry.value != (item.get("status") or {}).get("retried")


def next_retry(item: Mapping[str, Any], trial_ids: Sequence[str], token: str, *, from_scratch: bool) -> str:
    """Return the annotation for a new request; what an earlier one asked for and has not got yet is in it.

    Args:
        item: the TuneExperiment.
        trial_ids: those selected; empty = all that have failed.
        token: a word that was not used before.
        from_scratch: their checkpoints are forgotten.
    """
    pending = retry_of(item["metadata"]) if retry_is_pending(item) else None
    if pending is not None and pending.from_scratch == from_scratch:
        both = [*dict.fromkeys([*pending.trial_ids, *trial_ids])]
        trial_ids = both if pending.trial_ids and trial_ids else []
    return " ".join([token, *([FROM_SCRATCH] if from_scratch else []), *trial_ids])


def stop_is_asked(metadata: Mapping[str, Any]) -> bool:
    """Return whether an experiment is to stop: its annotation names this generation of its spec, or a later one."""
    asked = str((metadata.get("annotations") or {}).get(names.STOP_ANNOTATION, ""))
    if asked.isdecimal() and len(asked) <= MAX_GENERATION_DIGITS:
        return int(asked) >= int(metadata.get("generation") or 0)
    return asked.lower() == "true"
