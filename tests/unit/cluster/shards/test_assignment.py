"""The shard map: every shard gets an owner, shares stay equal, and nothing moves before its owner has released it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from trialpod_operator.cluster.shards.assignment import (
    MAP_FORMAT,
    SHARDS,
    Member,
    Shard,
    ShardMap,
    UnknownMapError,
    advance,
    decode_map,
    shard_of,
)
from trialpod_operator.cluster.shards.ownership import Ownership


def shares(shard_map: ShardMap) -> dict[str, int]:
    owners = [shard.destination for shard in shard_map.shards]
    return {name: owners.count(name) for name in sorted(set(owners))}


def holding(shard_map: ShardMap, name: str) -> Member:
    """Return the record of a replica that has followed the map."""
    ownership = Ownership(name)
    ownership.take(shard_map, {})
    return ownership.member()


def followed(shard_map: ShardMap, *names: str) -> ShardMap:
    """Return the map once everybody has followed it."""
    for _ in range(4):
        shard_map = advance(shard_map, {name: holding(shard_map, name) for name in names})
    return shard_map


class TestShardOf:
    def test_is_the_same_in_every_release(self) -> None:
        assert [shard_of(f"0b0c6a6e-0000-4000-8000-00000000000{n}") for n in range(4)] == [6, 0, 10, 12]

    def test_spreads_experiments(self) -> None:
        counts = [0] * SHARDS
        for n in range(1600):
            counts[shard_of(f"uid-{n}")] += 1
        assert min(counts) > 60


class TestAdvance:
    def test_first_replica_gets_everything(self) -> None:
        first = advance(ShardMap(), {"a": Member()})
        assert shares(first) == {"a": SHARDS}
        assert {shard.epoch for shard in first.shards} == {1}

    def test_nothing_changes_when_all_is_well(self) -> None:
        shard_map = followed(ShardMap(), "a", "b", "c")
        assert shares(shard_map) == {"a": 6, "b": 5, "c": 5}
        assert advance(shard_map, {name: holding(shard_map, name) for name in "abc"}) is shard_map

    def test_newcomer_gets_its_share_after_release(self) -> None:
        alone = followed(ShardMap(), "a")
        moving = advance(alone, {"a": holding(alone, "a"), "b": Member()})
        heirs = [n for n, shard in enumerate(moving.shards) if shard.heir == "b"]
        assert len(heirs) == SHARDS // 2
        # The record that `a` wrote before it read of the move is no answer, whatever it says.
        early = Member(seen=alone.version, held={})
        assert advance(moving, {"a": early, "b": Member()}) is moving
        released = holding(moving, "a")
        moved = advance(moving, {"a": released, "b": Member()})
        assert [n for n, shard in enumerate(moved.shards) if shard.owner == "b"] == heirs
        assert {moved.shards[n].epoch for n in heirs} == {2}

    def test_owner_that_holds_on_is_waited_for_until_overdue(self) -> None:
        alone = followed(ShardMap(), "a")
        held = holding(alone, "a")
        moving = advance(alone, {"a": held, "b": Member()})
        holds_on = Member(seen=moving.version, held=held.held)
        assert advance(moving, {"a": holds_on, "b": Member()}) is moving
        overdue = [n for n, shard in enumerate(moving.shards) if shard.heir]
        forced = advance(moving, {"a": holds_on, "b": Member()}, overdue[:1])
        assert forced.shards[overdue[0]].owner == "b"
        assert forced.shards[overdue[1]].owner == "a"

    def test_shards_of_the_dead_are_shared_out_at_once(self) -> None:
        three = followed(ShardMap(), "a", "b", "c")
        two = advance(three, {name: holding(three, name) for name in "ab"})
        assert shares(two) == {"a": 8, "b": 8}
        assert not any(shard.heir for shard in two.shards)

    def test_move_to_the_dead_is_cancelled_with_a_new_epoch(self) -> None:
        alone = followed(ShardMap(), "a")
        moving = advance(alone, {"a": holding(alone, "a"), "b": Member()})
        back = advance(moving, {"a": holding(moving, "a")})
        assert shares(back) == {"a": SHARDS}
        assert sorted({shard.epoch for shard in back.shards}) == [1, 2]

    def test_cancelled_move_stays_with_the_owner_that_holds_on(self) -> None:
        alone = followed(ShardMap(), "a")
        moving = advance(alone, {"a": holding(alone, "a"), "b": Member()})
        back = advance(moving, {"a": holding(alone, "a"), "c": Member()})
        assert {shard.owner for shard in back.shards} == {"a"}

    def test_leaver_gives_each_shard_in_one_step_once_it_is_closed(self) -> None:
        two = followed(ShardMap(), "a", "b")
        held = {n: shard.epoch for n, shard in enumerate(two.shards) if shard.owner == "a"}
        some = dict(list(held.items())[:3])
        moved = advance(two, {"a": Member(two.version, some, leaving=True), "b": holding(two, "b")})
        assert shares(moved) == {"a": 3, "b": SHARDS - 3}
        assert not any(shard.heir for shard in moved.shards)
        assert {n for n, shard in enumerate(moved.shards) if shard.owner == "a"} == set(some)

    def test_leaver_gets_nothing_back(self) -> None:
        alone = followed(ShardMap(), "a")
        moving = advance(alone, {"a": holding(alone, "a"), "b": Member()})
        given = advance(moving, {"a": Member(moving.version, {}), "b": Member(leaving=True), "c": Member()})
        assert "b" not in shares(given)
        assert advance(alone, {"a": Member(alone.version, {}, leaving=True)}) is alone

    def test_more_replicas_than_shards(self) -> None:
        names = [f"r{n:02}" for n in range(SHARDS + 3)]
        shard_map = followed(ShardMap(), *names)
        assert set(shares(shard_map).values()) == {1}


class TestEncoding:
    def test_round_trip(self) -> None:
        shard_map = followed(ShardMap(), "a", "b")
        assert decode_map(shard_map.encode()) == shard_map
        assert decode_map("") == ShardMap()

    @pytest.mark.parametrize(
        "text",
        [
            "nonsense",
            "{}x",
            msgspec.json.encode(ShardMap(format=MAP_FORMAT + 1)).decode(),
            msgspec.json.encode(ShardMap(shards=(Shard(),) * (SHARDS + 1))).decode(),
        ],
    )
    def test_map_of_another_release_is_refused(self, text: str) -> None:
        with pytest.raises(UnknownMapError):
            decode_map(text)

    def test_fits_into_an_annotation(self) -> None:
        names = [f"trialpod-operator-7f9c6d5b4-{n:05}" for n in range(SHARDS)]
        assert len(followed(ShardMap(), *names).encode()) < 4096


class Replica:
    """A replica, which reads and writes late, and whose record lags behind what it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ownership = Ownership(name)
        self.record: Member | None = Member()
        self.lost: frozenset[int] = frozenset()


class Handovers(RuleBasedStateMachine):
    """Replicas come, go, read, release and write in any order; coordinators act on what was last written."""

    replicas = Bundle("replicas")

    def __init__(self) -> None:
        super().__init__()
        self.map = ShardMap()
        self.known: dict[str, Replica] = {}
        self.made = 0
        self.epochs = [0] * SHARDS

    @initialize()
    def begin(self) -> None:
        self.coordinate()

    @rule(target=replicas)
    def joins(self) -> Replica:
        self.made += 1
        made = Replica(f"r{self.made}")
        self.known[made.name] = made
        return made

    @rule(replica=consumes(replicas))
    def dies(self, replica: Replica) -> None:
        del self.known[replica.name]

    @rule(replica=replicas)
    def leaves(self, replica: Replica) -> None:
        replica.ownership.leaving = True
        replica.lost |= replica.ownership.drop_all()

    @rule(replica=replicas)
    def reads(self, replica: Replica) -> None:
        _, lost = replica.ownership.take(self.map, {})
        replica.lost |= lost

    @rule(replica=replicas)
    def releases(self, replica: Replica) -> None:
        replica.ownership.released(replica.lost)
        replica.lost = frozenset()

    @rule(replica=replicas)
    def writes(self, replica: Replica) -> None:
        replica.record = replica.ownership.member()

    @rule()
    def coordinate(self) -> None:
        members = {name: each.record for name, each in self.known.items() if each.record is not None}
        if members:
            self.map = advance(self.map, members)

    def teardown(self) -> None:
        """Left alone, everything ends balanced, owned and served."""
        if not self.known:
            return
        for _ in range(6):
            for replica in self.known.values():
                self.reads(replica)
                self.releases(replica)
                self.writes(replica)
            self.coordinate()
        stays = {name for name, each in self.known.items() if not each.ownership.leaving}
        if not stays:
            return
        counts = shares(self.map)
        assert set(counts) <= stays
        assert max(counts.values()) - min([*counts.values(), *([0] if len(counts) < len(stays) else [])]) <= 1
        for number, shard in enumerate(self.map.shards):
            assert not shard.heir
            assert self.known[shard.owner].ownership.serves_shard(number)

    @invariant()
    def no_two_replicas_hold_a_shard(self) -> None:
        for number in range(SHARDS):
            holders = [name for name, each in self.known.items() if number in each.ownership.held]
            assert len(holders) <= 1, f"shard {number} is held by {holders}"

    @invariant()
    def epochs_grow(self) -> None:
        for number, shard in enumerate(self.map.shards):
            assert shard.epoch >= self.epochs[number]
            self.epochs[number] = shard.epoch


TestHandovers = Handovers.TestCase
TestHandovers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
