"""What one trial prints in its pods, each line once, however often its reader has to connect again.

Invariants: the position in a pod's output is the time that its runtime has stamped on the last line, not a number of
lines, which changes when the node rotates the file. A pod that runs several trials is read for one of them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialpod.protocol.output import lines_of, marked_attempt
from trialpod_operator.cluster import names

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ")

Moment = tuple[dt.datetime, str]
"""A time to the nanosecond."""


@dataclass(slots=True)
class _Position:
    """How far a pod's output was read.

    Attributes:
        trial_id: whose output follows.
        attempt: of that trial.
        stamp: of the last line that was read, as the API server takes it.
        moment: the same, to compare.
        read: how many bytes of that line were read.
        ended: they are the whole line.
    """

    trial_id: str
    attempt: int
    stamp: str = ""
    moment: Moment | None = None
    read: int = 0
    ended: bool = True


class PodOutput:
    """The output of one trial.

    Args:
        api: its namespace.
        trial_id: whose.
    """

    def __init__(self, api: Experiments, trial_id: str) -> None:
        self._api = api
        self._trial_id = trial_id
        self._positions: dict[str, _Position] = {}
        self._complete: set[tuple[str, int]] = set()  # uids of pods and attempts
        self._newest = 0

    def is_wanted(self, pod: Json) -> bool:
        """Return whether there may be more of the attempt that a pod runs; not of one before those that were read."""
        attempt = attempt_of(pod)
        return attempt >= self._newest and (_uid(pod), attempt) not in self._complete

    def lines(self, pod: Json, *, follow: bool = False) -> Iterator[bytes]:
        """Yield what the trial has printed in a pod since it was read last: lines, and parts of them with `follow`.

        Args:
            pod: it may have run other trials too.
            follow: until another trial begins in it after the attempt that it runs, or it ends.

        Raises:
            ApiError: there is no such pod, or it has not started.
            ClusterUnreachableError: the connection broke off; call again for the rest.
        """
        attempt = attempt_of(pod)
        made_for = (pod["metadata"].get("annotations") or {}).get(names.MADE_FOR_ANNOTATION)
        position = self._positions.get(_uid(pod))
        if position is None:
            first, _, number = str(made_for or f"{self._trial_id}/{attempt}").rpartition("/")
            position = self._positions[_uid(pod)] = _Position(first, int(number) if number.isdecimal() else 0)
        self._newest = max(self._newest, attempt)
        lines = self._unread(pod, position, follow=follow)
        if not made_for:
            yield from lines
        else:
            lines = self._observed(lines, _uid(pod), position)
            yield from lines_of(
                lines,
                self._trial_id,
                position.trial_id,
                first_attempt=position.attempt,
                until=attempt if follow else None,
            )
        if has_ended(pod):
            # The latest attempt that was read may be a later one than the pod was labelled with.
            self._complete |= {(_uid(pod), attempt), (_uid(pod), self._newest)}

    def _observed(self, lines: Iterator[bytes], uid: str, position: _Position) -> Iterator[bytes]:
        """Yield the lines of a pod that runs several trials, and take in which begin and end."""
        for line in lines:
            if (begun := marked_attempt(line)) is not None:
                trial_id, attempt = begun
                if trial_id == self._trial_id:
                    self._newest = max(self._newest, attempt)
                elif position.trial_id == self._trial_id:
                    self._complete.add((uid, position.attempt))
                position.trial_id, position.attempt = begun
            yield line

    def _unread(self, pod: Json, position: _Position, *, follow: bool) -> Iterator[bytes]:
        lines = self._api.log(
            pod["metadata"]["name"], container=container_of(pod), follow=follow, timestamps=True, since=position.stamp
        )
        last, read, ended = position.moment, position.read, position.ended
        begins, known, skip = True, False, 0
        for part in lines:  # or of a line, where it is followed
            if begins:
                known, skip = False, 0
                if (stamp := _STAMP.match(part)) is not None:
                    moment = _moment(stamp)
                    part = part[stamp.end() :]
                    # The API server counts in seconds.
                    known = last is not None and (moment < last or (moment == last and ended))
                    if not known:
                        skip = read if moment == last else 0
                        position.stamp, position.moment, position.read = stamp[0].decode().strip(), moment, 0
            begins = part.endswith(b"\n")
            if known:
                continue
            position.read += len(part)
            position.ended = begins
            unread, skip = part[skip:], max(0, skip - len(part))
            if unread:
                yield unread


def attempt_of(pod: Json) -> int:
    """Return the attempt that a pod runs."""
    text = str((pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, ""))
    return int(text) if text.isdecimal() else 0


def container_of(pod: Json) -> str:
    """Return the container of a pod that runs the trial."""
    found = [str(each["name"]) for each in (pod.get("spec") or {}).get("containers") or []]
    return names.CONTAINER if names.CONTAINER in found or not found else found[0]


def has_ended(pod: Json) -> bool:
    """Return whether the container of a pod that runs the trial prints nothing any more."""
    status = pod.get("status") or {}
    name = container_of(pod)
    states = [each.get("state") or {} for each in status.get("containerStatuses") or () if each.get("name") == name]
    return status.get("phase") in ("Succeeded", "Failed") or any("terminated" in state for state in states)


def _uid(pod: Json) -> str:
    return str(pod["metadata"].get("uid"))


def _moment(stamp: re.Match[bytes]) -> Moment:
    zone = "+00:00" if stamp[3] == b"Z" else stamp[3].decode()
    return dt.datetime.fromisoformat(stamp[1].decode() + zone), (stamp[2] or b"").decode().ljust(9, "0")
