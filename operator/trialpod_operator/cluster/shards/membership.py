"""One replica among the active ones: it keeps its Lease, follows the shard map, and writes the map as coordinator.

Two kinds of Leases, all in the operator's namespace. Each replica has one of its own: its heartbeat, with its address
and the shards that it holds. One more, of a fixed name, is the coordinator's; the shard map is an annotation of it,
so that the compare-and-swap which renews it also writes the map, and a replica that has lost it can write neither. A
replica that is alone (`alone`) has that one only.

Leases are for liveness. What keeps two replicas from both deciding is each experiment's journal
(`experiment.replica`).

Invariants: no clock is compared with another machine's; a Lease is dead when its record has not changed for its
duration, by one's own clock. The coordinator deletes a dead Lease, in the version that it saw, before it gives the
shards to others: a replica whose renewal still succeeds is not dead, and one whose renewal fails drops everything.
One that has a new Lease, and shards by the map, changes the coordinator's Lease before it serves them: a map that was
made without it cannot be written any more.
A replica changes nothing at the API server (`lease_valid`) unless it has renewed its Lease and read the map within
the duration. Without the API server reports are still taken: no other replica can be given its shards in a way that
the journals would not show.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from trialpod_operator.api.api_errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.shards.assignment import (
    Member,
    ShardMap,
    UnknownMapError,
    advance,
    decode_map,
)
from trialpod_operator.cluster.shards.ownership import Ownership

logger = logging.getLogger(__name__)

DURATION_S = 6.0
"""A replica that has not renewed its Lease for this time is dead."""
RENEW_INTERVAL_S = 2.0
TICK_S = 1.0
UNSERVED_S = 10.0
"""After this time a shard without an owner is reported: a takeover is over by then."""
HANDOVER_TIMEOUT_S = 10.0
"""Maximum time that a shard's heir waits for its owner; longer than an owner acts on a map without reading it."""

ALONE_DURATION_S = 15.0
ALONE_RENEW_INTERVAL_S = 4.0
"""Only the pod that replaces a single replica waits to take over from it."""

Object = dict[str, Any]
Released = Callable[[frozenset[int]], Coroutine[Any, Any, None]]


class _Record(msgspec.Struct, omit_defaults=True):
    """What a replica writes about itself: an annotation of its Lease."""

    address: str = ""
    seen: int = -1
    held: dict[int, int] = {}
    leaving: bool = False


class Membership:
    """This replica's place among the active ones.

    Args:
        kube: the API server.
        namespace: of the Leases.
        name: of the coordinator's Lease.
        identity: of this process. A holder of the same identity was this pod's container before it was restarted.
        ownership: what this replica serves; changed here only.
        release: closes all experiments of shards; returns when they are closed.
        on_gained: called with the shards that this replica serves from now on.
        address: "host:port" under which attempts reach this replica's report service.
        monotonic: seconds, for differences only.
        facts: annotations of the coordinator's Lease that say what the operator is.
        alone: there is no other replica.
        on_outage: called when the API server answers again, with the seconds for which it did not.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        ownership: Ownership,
        release: Released,
        on_gained: Callable[[frozenset[int]], None],
        *,
        address: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        facts: Mapping[str, str] | None = None,
        alone: bool = False,
        on_outage: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.ownership = ownership
        self.joined = False
        """Whether this replica is one of the active ones."""
        ownership.several = not alone
        self._kube = kube
        self._collection = paths.leases(namespace)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._release = release
        self._on_gained = on_gained
        self._address = address
        self._monotonic = monotonic
        self._facts = dict(facts or {})
        self._alone = alone
        self._on_outage = on_outage
        self._duration_s = ALONE_DURATION_S if alone else DURATION_S
        self._own: Object | None = None  # this replica's Lease; when alone, the coordinator's
        self._written: _Record | None = None  # what it says
        self._confirmed = False  # the map was made with this Lease
        self._renewed_at = self._read_at = -1e9  # when the latest renewal, and the latest reading, began
        self._changed: dict[str, tuple[str, float]] = {}  # version of each Lease, and when it was first seen
        self._moving: dict[tuple[int, int], float] = {}  # shard and version of its move: since when
        self._unserved: dict[int, float] = {}
        self._coordinates = False
        self._map = ShardMap()
        self._missed = False
        self._reported = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    # -- what others ask --

    def lease_valid(self) -> bool:
        """Whether no other replica can have been given what this one serves: false also in one that was stopped."""
        return self.joined and self._monotonic() - self._valid_at < self._duration_s

    @property
    def _valid_at(self) -> float:
        return min(self._renewed_at, self._read_at)

    def unserved(self) -> dict[int, float]:
        """Return the shards that no live replica serves, each with the seconds since when."""
        now = self._monotonic()
        return {number: now - since for number, since in sorted(self._unserved.items())}

    def abandoned(self) -> dict[int, float]:
        """Return the same of those that this replica has to report: as coordinator, after `UNSERVED_S`."""
        if not self._coordinates or not self.lease_valid():
            return {}
        return {number: seconds for number, seconds in self.unserved().items() if seconds > UNSERVED_S}

    @property
    def map(self) -> ShardMap:
        """The shard map as it was read last."""
        return self._map

    # -- the life of a replica --

    async def join(self) -> None:
        """Wait until this replica is active; a single one, until no other is.

        Raises:
            ApiError: the API server refuses for good.
        """
        while True:
            try:
                await self._tick()
                if self.joined:
                    return
            except ApiError as error:
                if not error.temporary:
                    raise
                logger.info("the Lease %s cannot be taken yet: %s", self._name, error)
            except (TimeoutError, UnknownMapError) as error:
                logger.warning("not active yet: %s", error or "the API server does not answer in time")
            await asyncio.sleep(TICK_S)

    async def keep(self) -> None:
        """Stay active; returns only when this replica is alone and another has taken its Lease."""
        valid_at = self._valid_at
        while self.joined or not self._alone:
            pause_s = ALONE_RENEW_INTERVAL_S if self._alone and not self._missed and not self._late() else TICK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._tick()
            except (ApiError, UnknownMapError) as error:
                self._complain(str(error))
            except TimeoutError:
                self._complain("no answer in time")
            if self._valid_at > valid_at:
                outage_s, valid_at = self._valid_at - valid_at, self._valid_at
                if self._missed:
                    self._missed = False
                    logger.warning("the Lease %s is renewed again, and the shard map read", self._name)
                    self._on_outage(outage_s)
            elif not self._missed and self._monotonic() - valid_at > self._duration_s - TICK_S:
                self._missed = True
                logger.warning(
                    "the Lease %s could not be renewed, or the shard map not be read, for %.0f s: trials continue "
                    "and report; nothing new begins until the API server answers",
                    self._name,
                    self._monotonic() - valid_at,
                )

    async def hand_over(self, timeout_s: float) -> None:
        """Release all shards, and let others serve each as soon as its experiments are closed.

        Returns when all are, at the latest after `timeout_s`. `keep` has to run meanwhile.
        """
        self.ownership.leaving = True
        self._start_release(self.ownership.drop_all())
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def leave(self) -> None:
        """Let others take over at once; to be called when all experiments are closed."""
        for task in self._tasks:
            task.cancel()
        if not self.joined or self._own is None:
            return
        self.joined = False
        for name, release in ((self._own_name, self._release_own), (self._name, self._release_coordinator)):
            try:
                await release()
            except (ApiError, TimeoutError) as error:
                logger.info("the Lease %s could not be released: %s", name, error)
                # A change to one replica takes the permission for the own Lease away, and leaves the other's.
                if not isinstance(error, ForbiddenError):
                    return

    async def _release_own(self) -> None:
        # What was written last may be newer than what is known here: a renewal may have been cut short.
        if not self._alone and (own := await self._kube.get(self._collection, self._own_name)) is not None:
            await self._delete(own)

    async def _release_coordinator(self) -> None:
        found = await self._kube.get(self._collection, self._name)
        if found is not None and _holder(found) == self._identity:
            await self._put(found, self._coordinator_body(found, _map_of(found), holder=""))

    # -- one tick --

    async def _tick(self) -> None:
        if self._alone:
            await self._tick_alone()
            return
        if not await self._renew():
            return
        began = self._monotonic()
        selector = f"{names.OPERATORS_LABEL}={self._name}"
        async with self._limit():
            found = {item["metadata"]["name"]: item for item in await self._kube.list(self._collection, selector)}
            coordinator = found.pop(self._name, None) or await self._kube.get(self._collection, self._name)
        self._observe([*found.values(), *([coordinator] if coordinator is not None else [])])
        if coordinator is not None and not self._confirmed:
            coordinator = await self._confirm(coordinator)
            if coordinator is None:
                return  # another map comes right now
        self._confirmed = True
        self._follow(_map_of(coordinator), found, began, coordinator)
        self.joined = True
        await self._coordinate(coordinator, found)

    async def _tick_alone(self) -> None:
        began = self._monotonic()
        found = self._own
        if found is None:
            async with self._limit():
                found = await self._kube.get(self._collection, self._name)
            if found is not None:
                self._observe([found])
                if _holder(found) not in ("", self._identity) and not self._is_dead(found):
                    self._tell(f"{_holder(found)} is active; waiting for the Lease {self._name}")
                    return
        shard_map = advance(_map_of(found), {self._identity: self.ownership.member()})
        body = self._coordinator_body(found, shard_map, holder=self._identity)
        try:
            self._own = await self._put(found, body)
        except (ConflictError, NotFoundError):
            # The answer to a renewal may have been lost, and then its version is another one.
            async with self._limit():
                self._own = await self._kube.get(self._collection, self._name)
            if self._own is None or _holder(self._own) != self._identity:
                if self.joined:
                    logger.error("the Lease %s was taken by another operator", self._name)
                self.joined, self._own = False, None
                self._start_release(self.ownership.drop_all())
            return
        self._renewed_at, self.joined = began, True
        self._follow(shard_map, {}, began)

    async def _renew(self) -> bool:
        """Renew this replica's own Lease; return False when it has to close everything first."""
        began = self._monotonic()
        member = self.ownership.member()
        record = _Record(self._address, member.seen, dict(member.held), member.leaving)
        if self._own is None and self.ownership.held:
            return False
        if self._own is not None and record == self._written and began - self._renewed_at < RENEW_INTERVAL_S:
            return True
        self._confirmed = self._confirmed and self._own is not None
        try:
            self._own = await self._put(self._own, self._member_body(record))
        except (ConflictError, NotFoundError, AlreadyExistsError):
            # It is gone; or the answer to a renewal was lost; or this pod's container was restarted.
            created, began = self._own is None, self._monotonic()
            async with self._limit():
                self._own = await self._kube.get(self._collection, self._own_name)
            if self._own is None:
                self._read_at = -1e9
                if not created:
                    logger.error("the Lease %s is gone: others may serve what this replica served", self._own_name)
                self._start_release(self.ownership.drop_all())
                return False
            try:
                self._own = await self._put(self._own, self._member_body(record))
            except (ConflictError, NotFoundError):
                return False  # deleted right now, as a dead replica's, or changed again: the next tick finds out
        self._written, self._renewed_at = record, began
        return True

    async def _confirm(self, coordinator: Object) -> Object | None:
        """Invalidate the map that a coordinator may be about to write for which this replica was dead.

        Returns:
            The coordinator's Lease; None when it was faster.
        """
        if all(self._identity != shard.owner for shard in _map_of(coordinator).shards):
            return coordinator
        assert self._own is not None
        annotations = {
            **coordinator["metadata"]["annotations"],
            names.JOINED_ANNOTATION: self._own["metadata"]["uid"],
        }
        body = {
            **coordinator,
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**coordinator["metadata"], "annotations": annotations},
        }
        try:
            written = await self._put(coordinator, body)
        except (ConflictError, NotFoundError):
            return None
        self._observe([written])
        return written

    def _follow(
        self, shard_map: ShardMap, found: Mapping[str, Object], began: float, coordinator: Object | None = None
    ) -> None:
        """Serve what the map says.

        Args:
            shard_map: as it is written.
            found: the replicas' own Leases, by name.
            began: when it was read.
            coordinator: the coordinator's Lease, where another replica may be its holder.
        """
        records = {_holder(item): _record(item) for item in found.values()}
        gained, lost = self.ownership.take(shard_map, {name: each.address for name, each in records.items()})
        self._map, self._read_at = shard_map, began
        self._start_release(lost)
        if gained:
            logger.info("serving shards %s", ", ".join(map(str, sorted(gained))))
            self._on_gained(gained)
        if len(self.ownership.serving) == len(shard_map.shards):
            self._unserved.clear()
            return
        now = self._monotonic()
        # One that is alone has no Lease of its own.
        alone = _holder(coordinator) if coordinator is not None and not self._is_dead(coordinator) else ""
        for number, shard in enumerate(shard_map.shards):
            record = records.get(shard.owner)
            served = record.held.get(number) == shard.epoch if record is not None else shard.owner == alone != ""
            served = served and not shard.heir
            if self.ownership.serves_shard(number) or served:
                self._unserved.pop(number, None)
            else:
                self._unserved.setdefault(number, now)

    def _start_release(self, lost: frozenset[int]) -> None:
        if not lost:
            return
        logger.info("releasing shards %s", ", ".join(map(str, sorted(lost))))

        async def release(number: int) -> None:
            await self._release(frozenset({number}))
            self.ownership.released({number})
            self._wake.set()  # the heir waits for the record that says so

        for number in sorted(lost):
            task = asyncio.ensure_future(release(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- the coordinator --

    async def _coordinate(self, found: Object | None, leases: Mapping[str, Object]) -> None:
        """Write the map, if this replica is the coordinator or can be."""
        self._coordinates = found is not None and _holder(found) == self._identity
        if found is not None and not self._coordinates and _holder(found) and not self._is_dead(found):
            return
        members = {}
        for item in leases.values():
            if _holder(item) != self._identity and self._is_dead(item) and await self._bury(item):
                continue
            if _holder(item):
                record = _record(item)
                members[_holder(item)] = Member(record.seen, record.held, record.leaving)
        members[self._identity] = self.ownership.member()
        current = _map_of(found)
        shard_map = advance(current, members, self._overdue(current))
        now = self._monotonic()
        version = _version(found) if found is not None else ""
        known, since = self._changed.get(self._name, ("", -1e9))
        renewed = found is not None and _holder(found) == self._identity and known == version
        if shard_map is current and renewed and now - since < RENEW_INTERVAL_S - 0.5:
            return
        try:
            written = await self._put(found, self._coordinator_body(found, shard_map, holder=self._identity))
        except (ConflictError, NotFoundError, AlreadyExistsError):
            return  # another one was faster, and the next tick shows what it wrote
        self._observe([written])
        if shard_map is not current:
            # What it says of others they will read; of this replica it holds at once.
            self._follow(shard_map, leases, self._read_at)

    def _overdue(self, current: ShardMap) -> list[int]:
        now = self._monotonic()
        moving = {(number, each.changed) for number, each in enumerate(current.shards) if each.heir}
        self._moving = {key: self._moving.get(key, now) for key in moving}
        overdue = [number for (number, _), since in self._moving.items() if now - since > HANDOVER_TIMEOUT_S]
        for number in overdue:
            shard = current.shards[number]
            logger.warning("%s does not release shard %d: %s takes it over", shard.owner, number, shard.heir)
        return sorted(overdue)

    async def _bury(self, item: Object) -> bool:
        """Delete a dead replica's Lease as it was seen; return False when it is not dead after all."""
        try:
            await self._delete(item)
        except ConflictError:
            return False
        except NotFoundError:
            return True
        logger.warning("%s has not renewed its Lease: others take over what it served", _holder(item))
        return True

    # -- Leases --

    @property
    def _own_name(self) -> str:
        return f"{self._name}-{self._identity}"

    def _observe(self, items: list[Object]) -> None:
        now = self._monotonic()
        for item in items:
            name, version = item["metadata"]["name"], _version(item)
            if self._changed.get(name, ("", 0.0))[0] != version:
                self._changed[name] = (version, now)

    def _is_dead(self, item: Object) -> bool:
        version, since = self._changed[item["metadata"]["name"]]
        length = float((item.get("spec") or {}).get("leaseDurationSeconds") or ALONE_DURATION_S)
        return version == _version(item) and self._monotonic() - since >= length

    def _member_body(self, record: _Record) -> Object:
        annotations = {names.REPLICA_ANNOTATION: msgspec.json.encode(record).decode()}
        return self._body(self._own_name, self._own, annotations, self._identity)

    def _coordinator_body(self, found: Object | None, shard_map: ShardMap, *, holder: str) -> Object:
        annotations = {**self._facts, names.SHARDS_ANNOTATION: shard_map.encode()}
        if abandoned := self.abandoned():
            now = dt.datetime.now(dt.UTC)
            since = {number: now - dt.timedelta(seconds=seconds) for number, seconds in abandoned.items()}
            text = msgspec.json.encode({number: f"{at:%Y-%m-%dT%H:%M:%SZ}" for number, at in since.items()})
            annotations[names.UNSERVED_ANNOTATION] = text.decode()
        return self._body(self._name, found, annotations, holder)

    def _body(self, name: str, found: Object | None, annotations: dict[str, str], holder: str) -> Object:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (found or {}).get("spec") or {}
        same = before.get("holderIdentity") == holder
        transitions = int(before.get("leaseTransitions") or 0)
        metadata: Object = {
            "name": name,
            "namespace": self._namespace,
            "annotations": annotations,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGER, names.OPERATORS_LABEL: self._name},
        }
        if found is not None:
            metadata["resourceVersion"] = _version(found)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(self._duration_s),
                "acquireTime": before.get("acquireTime") if same or not holder else now,
                "renewTime": now,
                "leaseTransitions": transitions if same or not holder or found is None else transitions + 1,
            },
        }

    async def _put(self, found: Object | None, body: Object) -> Object:
        async with self._limit():
            if found is None:
                return await self._kube.create(self._collection, body)
            written: Object = await self._kube.request(
                "PUT", f"{self._collection}/{body['metadata']['name']}", body=body
            )
            return written

    async def _delete(self, item: Object) -> None:
        metadata = item["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        async with self._limit():
            await self._kube.request(
                "DELETE", f"{self._collection}/{metadata['name']}", body={"preconditions": preconditions}
            )

    def _limit(self) -> asyncio.Timeout:
        return asyncio.timeout(self._duration_s / 2)

    def _late(self) -> bool:
        return self._monotonic() - self._renewed_at > ALONE_RENEW_INTERVAL_S + 1.0

    def _complain(self, why: str) -> None:
        # Once it is said that this takes longer, it is not said every second.
        level = logging.INFO if self._missed else logging.WARNING
        logger.log(level, "the Lease %s could not be renewed, or the shard map not be read: %s", self._own_name, why)

    def _tell(self, message: str) -> None:
        if message != self._reported:
            self._reported = message
            logger.info("%s", message)


def _holder(item: Object) -> str:
    return str((item.get("spec") or {}).get("holderIdentity") or "")


def _version(item: Object) -> str:
    return str(item["metadata"].get("resourceVersion") or "")


def _map_of(item: Object | None) -> ShardMap:
    annotations = ((item or {}).get("metadata") or {}).get("annotations") or {}
    return decode_map(annotations.get(names.SHARDS_ANNOTATION) or "")


def _record(item: Object) -> _Record:
    text = (item["metadata"].get("annotations") or {}).get(names.REPLICA_ANNOTATION) or "{}"
    try:
        return msgspec.json.decode(text, type=_Record)
    except msgspec.DecodeError:
        return _Record()  # it was edited; its replica writes it again
