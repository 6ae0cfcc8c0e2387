"""The stored form of an engine: its state, and the states that its algorithms give away.

Each state of trialpod's own algorithms says its version. States of a user's own classes are theirs: nothing in them
is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.readable import readable, storable
from trialpod.tune.plugins.state import referring_to, restore_state, stored_state
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.state import Account, BudgetProgress, Clock, Flags, SearchProgress, State
from trialpod_operator.engine.trial import Trial

SNAPSHOT_VERSION = 1

STATE_VERSION = 1
"""The newest version that is read here, of every algorithm's state."""

_WRAPPED = (("search", None), ("searcher", "searcher"), ("_base", "base"))


class Kinds(msgspec.Struct, kw_only=True, frozen=True):
    """The classes whose states a snapshot holds, each with the one that it wraps."""

    search: str
    scheduler: str
    stopper: str = ""


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything needed to continue, as plain data."""

    version: int
    settings: Settings | None
    flags: Flags
    clock: Clock
    account: Account
    budget: BudgetProgress = msgspec.field(default_factory=BudgetProgress)  # snapshots made before it have none
    search_progress: SearchProgress
    trials: list[Trial]
    pending: list[str]
    delayed: list[str]
    paused: list[str]
    search: dict[str, Any]
    scheduler: dict[str, Any]
    stopper: dict[str, Any] | None
    kinds: Kinds


class _Version(msgspec.Struct):
    version: int


def encode_snapshot(state: State, algorithms: Algorithms) -> bytes:
    """Return the whole state as MessagePack.

    Raises:
        StateNotKeptError: an algorithm of the user has a state that cannot be stored.
    """
    with referring_to(algorithms.references()):
        states = [
            None if each is None else stored_state(each)
            for each in (algorithms.search, algorithms.scheduler, algorithms.stopper)
        ]
    try:
        return _encode(state, algorithms, states)
    except OverflowError:  # an integer beyond 64 bits, such as a parameter of a scheduler
        return _encode(state, algorithms, storable(states))


def _encode(state: State, algorithms: Algorithms, states: list[Any]) -> bytes:
    search, scheduler, stopper = states
    return msgspec.msgpack.encode(
        Snapshot(
            version=SNAPSHOT_VERSION,
            settings=state.settings,
            flags=state.flags,
            clock=state.clock,
            account=state.account,
            budget=state.budget,
            search_progress=state.search_progress,
            trials=list(state.trials.values()),
            pending=list(state.pending),
            delayed=list(state.delayed),
            paused=list(state.paused),
            search=search,
            scheduler=scheduler,
            stopper=stopper,
            kinds=_kinds(algorithms),
        ),
        enc_hook=readable,
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """Read a snapshot.

    Raises:
        InvalidInputError: it is of a newer version, or none at all.
    """
    try:
        version = msgspec.msgpack.decode(data, type=_Version).version
        snapshot = msgspec.msgpack.decode(data, type=Snapshot) if version <= SNAPSHOT_VERSION else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(
            f"the snapshot's state of the experiment cannot be read ({error}): it is damaged, or another "
            "program's; put the experiment back from a copy"
        ) from error
    if snapshot is None:
        raise InvalidInputError(
            f"this experiment was written by a newer trialpod (snapshot version {version}, this one "
            f"reads up to {SNAPSHOT_VERSION}); nothing was changed; upgrade trialpod to open it"
        )
    return snapshot


def restore(snapshot: Snapshot, state: State, algorithms: Algorithms, *, by_record: bool) -> None:
    """Take over a snapshot.

    Args:
        snapshot: what is taken over.
        state: a new one.
        algorithms: new ones.
        by_record: the algorithms only stand in for those that decided.

    Raises:
        InvalidInputError: it is of other algorithms, or of newer versions of them.
    """
    search, scheduler, stopper = algorithms.search, algorithms.scheduler, algorithms.stopper
    _check_versions((search, snapshot.search), (scheduler, snapshot.scheduler), (stopper, snapshot.stopper))
    kinds = _kinds(algorithms)
    if not by_record:
        _check_kinds(snapshot.kinds, kinds)
    state.flags, state.clock, state.account = snapshot.flags, snapshot.clock, snapshot.account
    state.search_progress, state.budget = snapshot.search_progress, snapshot.budget
    queues = snapshot.pending, snapshot.delayed, snapshot.paused
    state.load(snapshot.trials, queues, opens=algorithms.opens_values)
    if snapshot.settings is not None:
        state.set_settings(snapshot.settings)
        algorithms.introduce(snapshot.settings)
        search.set_num_samples(snapshot.settings.num_samples)
    with referring_to(algorithms.references()):
        _load(search, snapshot.search)
        if state.search_progress.requested:
            algorithms.request_suggestion()
        _load(scheduler, snapshot.scheduler)
        # Another stopper begins without the history of the one before it: stop rules may change.
        same = by_record or snapshot.kinds.stopper == kinds.stopper
        if stopper is not None and snapshot.stopper is not None and same:
            _load(stopper, snapshot.stopper)
    algorithms.observe_time()


def _kinds(algorithms: Algorithms) -> Kinds:
    return Kinds(
        search=_kind_of(algorithms.search),
        scheduler=_kind_of(algorithms.scheduler),
        stopper=_kind_of(algorithms.stopper),
    )


def _load(owner: Any, state: dict[str, Any]) -> None:
    try:
        restore_state(owner, state)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"the stored state does not fit {_kind_of(owner)} ({type(error).__name__}: {error}); the experiment "
            "was started with another search algorithm, scheduler or stopper, or with another version of it. Use "
            "the same one, or another name for a new experiment"
        ) from error


def _check_versions(*owned: tuple[object, Any]) -> None:
    """Refuse what a newer trialpod wrote.

    Args:
        owned: each object with the state that it is to take over.

    Raises:
        InvalidInputError: a state is of a newer version.
    """
    for owner, state in owned:
        for each, its in _all(owner, state):
            version = its.get("version")
            ours = type(each).__module__.partition(".")[0] == "trialpod"
            if ours and isinstance(version, int) and version > STATE_VERSION:
                raise InvalidInputError(
                    f"the stored state of {type(each).__name__} has version {version}, and this trialpod reads up to "
                    f"{STATE_VERSION}: a newer trialpod wrote it. Nothing was changed; upgrade trialpod to continue"
                )


def _kind_of(owner: object) -> str:
    """Return the class of an algorithm, with those that it wraps: "SearchGenerator(OptunaSearch)"; "" for None.

    What only passes calls on, in a thread or from a record, is left out.
    """
    if owner is None:
        return ""
    wrapped = (getattr(owner, attribute, None) for attribute, _ in _WRAPPED)
    inner = next((found for found in wrapped if hasattr(found, "__dict__")), None)
    if getattr(owner, "transparent", False):
        return _kind_of(inner)
    name = type(owner).__name__
    return f"{name}({_kind_of(inner)})" if inner is not None and inner is not owner else name


def _check_kinds(stored: Kinds, now: Kinds) -> None:
    """Refuse the state of another search algorithm or scheduler.

    Raises:
        InvalidInputError: the experiment was started with another one.
    """
    for what, before, given in (
        ("search algorithm", stored.search, now.search),
        ("scheduler", stored.scheduler, now.scheduler),
    ):
        if before and given and before != given:
            raise InvalidInputError(
                f"the experiment was started with the {what} {before}, not {given}; its state cannot be taken over. "
                "Use the same one, or another name for a new experiment"
            )


def _all(owner: object, state: Any) -> Iterator[tuple[object, dict[str, Any]]]:
    if owner is None or not isinstance(state, dict):
        return
    yield owner, state
    for attribute, key in _WRAPPED:
        inner = getattr(owner, attribute, None)
        if inner is not None and inner is not owner:
            yield from _all(inner, state if key is None else state.get(key))
    several, states = getattr(owner, "_stoppers", None), state.get("stoppers")
    if isinstance(several, (list, tuple)) and isinstance(states, list):
        for each, its in zip(several, states, strict=False):
            yield from _all(each, its)
