"""The shard map: which replica serves which shard of the experiments, and how that changes. Pure functions.

An experiment is in the shard that its uid hashes to, for as long as it lives. One map says which replica owns each
shard. Only the coordinator changes it, by `advance`, and writes it with compare-and-swap; no replica computes what it
owns from what it sees of the others.

A shard moves in two steps. First its owner stays in the map, with an heir: the owner stops serving, commits what is
in progress and says in its own record that it no longer holds the shard. Then the heir owns it. An owner that is
gone, or does not answer in time, is not waited for: experiments' journals refuse the one that comes late. One that is
leaving releases everything by itself, and each shard gets its new owner in one step.

Invariants: the epoch of a shard grows whenever it gets an owner again. A record counts as an answer only when it was
written by one that has read the map in which the move began (`Member.seen`, `Shard.changed`). Shards move only when
that makes the shares more equal.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from trialpod.errors import TrialpodError

SHARDS = 16
"""Their number is part of the map's format: replicas that disagree about it would both serve an experiment."""

MAP_FORMAT = 1


class UnknownMapError(TrialpodError):
    """The shard map was written by an operator of another release."""


class Shard(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard.

    Attributes:
        owner: the replica that serves it; "" = none has yet.
        epoch: how many times it has got an owner.
        heir: the replica that gets it as soon as the owner has released it.
        changed: version of the map in which this entry was written.
    """

    owner: str = ""
    epoch: int = 0
    heir: str = ""
    changed: int = 0

    @property
    def destination(self) -> str:
        """The replica that serves it in the end."""
        return self.heir or self.owner


class ShardMap(msgspec.Struct, frozen=True):
    """Which replica serves which shard."""

    format: int = MAP_FORMAT
    version: int = 0
    shards: tuple[Shard, ...] = (Shard(),) * SHARDS

    def encode(self) -> str:
        """Return the map as text."""
        return msgspec.json.encode(self).decode()


def decode_map(text: str) -> ShardMap:
    """Read what `ShardMap.encode` wrote; "" is the map of the very first start.

    Raises:
        UnknownMapError: it cannot be read, or another release wrote it.
    """
    if not text:
        return ShardMap()
    try:
        found = msgspec.json.decode(text, type=ShardMap)
    except msgspec.DecodeError as error:
        raise UnknownMapError(f"the shard map in the operator's Lease cannot be read: {error}") from error
    if found.format != MAP_FORMAT or len(found.shards) != SHARDS:
        raise UnknownMapError(
            f"the shard map in the operator's Lease has format {found.format} with {len(found.shards)} shards; this "
            f"release has format {MAP_FORMAT} with {SHARDS}. Run operators of one release; to begin with a new map, "
            "stop them all and delete the Lease"
        )
    return found


@dataclass(frozen=True)
class Member:
    """What a live replica says of itself.

    Attributes:
        seen: version of the map that it read last; -1 = none.
        held: epoch of each shard that it serves, or has not released yet.
        leaving: it releases all shards and wants none.
    """

    seen: int = -1
    held: Mapping[int, int] = field(default_factory=dict)
    leaving: bool = False

    def has_released(self, number: int, shard: Shard) -> bool:
        """Return whether it has read that the shard moves, and no longer holds it."""
        return self.seen >= shard.changed and number not in self.held


def shares(text: str) -> dict[str, int]:
    """Return how many shards each operator serves, by an encoded map; empty when it cannot be read."""
    try:
        shard_map = decode_map(text)
    except UnknownMapError:
        return {}
    owners = Counter(shard.owner for shard in shard_map.shards if shard.owner)
    return {name: owners[name] for name in sorted(owners)}


def unserved_since(text: str, uid: str) -> str | None:
    """Return, by what a coordinator has written, that no operator serves an experiment; None when one does.

    Args:
        text: the annotation; one that cannot be read says nothing.
        uid: of the experiment.
    """
    try:
        found = msgspec.json.decode(text or "{}", type=dict[int, str])
    except msgspec.DecodeError:
        return None
    number = shard_of(uid)
    return (
        f"no operator has served the experiment (shard {number}) since {found[number]}" if number in found else None
    )


def handover(text: str, uid: str) -> str | None:
    """Return, by an encoded map, that an experiment is about to get another operator; None when it is not.

    Args:
        text: the map; one that cannot be read says nothing.
        uid: of the experiment.
    """
    number = shard_of(uid)
    try:
        shard = decode_map(text).shards[number]
    except UnknownMapError:
        return None
    if not shard.heir:
        return None
    return f"the experiment is handed over by operator {shard.owner} to {shard.heir} (shard {number})"


def shard_of(uid: str) -> int:
    """Return the number of an experiment's shard."""
    return zlib.crc32(uid.encode()) % SHARDS


def _is_balanced(shards: Collection[Shard], staying: Collection[str]) -> bool:
    """Return whether no shard moves or has to: so it is at nearly every tick."""
    load = dict.fromkeys(staying, 0)
    for shard in shards:
        if shard.heir or shard.owner not in load:
            return False
        load[shard.owner] += 1
    return max(load.values()) - min(load.values()) <= 1


def advance(current: ShardMap, members: Mapping[str, Member], overdue: Collection[int] = ()) -> ShardMap:
    """Return the next map; the same object when nothing is to change.

    Args:
        current: the map as it is written.
        members: the live replicas; not empty.
        overdue: shards whose owner has had its time to reply.
    """
    version = current.version + 1
    shards = list(current.shards)
    staying = {name for name, member in members.items() if not member.leaving}
    if not staying:
        return current  # the next coordinator takes what is left
    if _is_balanced(current.shards, staying):
        return current

    def own(number: int, owner: str) -> None:
        shards[number] = Shard(owner=owner, epoch=shards[number].epoch + 1, changed=version)

    # What moves: the heir gets it once its owner is gone, has released it, or was waited for long enough.
    for number, shard in enumerate(shards):
        owner = members.get(shard.owner)
        if not shard.heir:
            continue
        if shard.heir not in staying:
            if owner is not None:
                own(number, shard.owner)
        elif owner is None or number in overdue or owner.has_released(number, shard):
            own(number, shard.heir)
    # Shards without an owner go to the replica with the fewest.
    load = Counter(dict.fromkeys(sorted(staying), 0))
    load.update(shard.destination for shard in shards if shard.destination in staying)
    for number, shard in enumerate(shards):
        owner = members.get(shard.owner)
        if owner is not None and owner.leaving and number in owner.held:
            continue  # until it has released it
        if shard.destination not in staying:
            least = min(load, key=lambda name: (load[name], name))
            own(number, least)
            load[least] += 1
    # A replica with two more than another gives one away.
    for number in reversed(range(SHARDS)):
        shard = shards[number]
        least = min(load, key=lambda name: (load[name], name))
        if not shard.heir and shard.owner in staying and load[shard.owner] - load[least] > 1:
            shards[number] = Shard(owner=shard.owner, epoch=shard.epoch, heir=least, changed=version)
            load[shard.owner] -= 1
            load[least] += 1
    if tuple(shards) == current.shards:
        return current
    return ShardMap(version=version, shards=tuple(shards))
