"""What this replica serves, and where the others are.

Owned by the event loop; changed by `Membership` alone, read by the controller and by the report service.

Invariants: a shard that has to be released is not served from that moment on, and stays in `held` until the last of
its experiments is closed. It is taken again only after that, and by one that is leaving never.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trialpod_operator.cluster.shards.assignment import SHARDS, Member, ShardMap, shard_of


class Ownership:
    """The shards of one replica.

    Args:
        identity: of this replica.
        everything: it serves all shards from the beginning, without a map.

    Attributes:
        held: epoch of each shard that it serves or has not released yet.
        seen: version of the map that was read last; -1 = none.
    """

    def __init__(self, identity: str = "", *, everything: bool = False) -> None:
        self._identity = identity
        self.held: dict[int, int] = dict.fromkeys(range(SHARDS), 0) if everything else {}
        self.seen = -1
        self.several = False
        """Whether others may serve what this replica does not know of."""
        self.leaving = False
        """Whether this replica takes no shard any more."""
        self._releasing: set[int] = set()
        self._elsewhere: dict[int, str] = {}

    @property
    def serving(self) -> frozenset[int]:
        """The numbers of the shards that this replica serves."""
        return frozenset(self.held.keys() - self._releasing)

    def serves(self, uid: str) -> bool:
        """Return whether this replica serves an experiment."""
        return self.serves_shard(shard_of(uid))

    def serves_shard(self, number: int) -> bool:
        """Return whether this replica serves a shard."""
        return number in self.held and number not in self._releasing

    def address_of(self, uid: str) -> str:
        """Return the address of the other replica that serves an experiment, "" when none is known to."""
        return self._elsewhere.get(shard_of(uid), "")

    def member(self) -> Member:
        """Return what this replica says of itself."""
        return Member(self.seen, dict(self.held), self.leaving)

    def take(self, shard_map: ShardMap, addresses: Mapping[str, str]) -> tuple[frozenset[int], frozenset[int]]:
        """Follow the map; return the shards that are gained, and those that are to be released.

        Args:
            shard_map: as it was just read.
            addresses: of the live replicas.
        """
        self.seen = shard_map.version
        gained, lost = set(), set()
        self._elsewhere = {}
        for number, shard in enumerate(shard_map.shards):
            mine = shard.owner == self._identity and not shard.heir
            if not shard.heir and not mine and addresses.get(shard.owner):
                self._elsewhere[number] = addresses[shard.owner]
            if number in self._releasing:
                continue
            epoch = self.held.get(number)
            if mine and epoch is None and not self.leaving:
                self.held[number] = shard.epoch
                gained.add(number)
            elif epoch is not None and (not mine or epoch != shard.epoch):
                lost.add(number)
        self._releasing |= lost
        return frozenset(gained), frozenset(lost)

    def drop_all(self) -> frozenset[int]:
        """Serve nothing any more; return the shards that are to be released."""
        lost = frozenset(self.held.keys() - self._releasing)
        self._releasing |= lost
        self._elsewhere = {}
        return lost

    def released(self, numbers: Collection[int]) -> None:
        """All experiments of these shards are closed."""
        for number in numbers:
            self._releasing.discard(number)
            self.held.pop(number, None)
