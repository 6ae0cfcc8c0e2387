"""The versions of the states that trialpod's own search algorithms, schedulers and stoppers leave in a snapshot.

Each state says its version. States of a user's own classes are theirs: nothing in them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.engine.state import Kinds

STATE_VERSION = 1
"""The newest version that is read here, of every state."""

_WRAPPED = (("search", None), ("searcher", "searcher"), ("_base", "base"))


def check_versions(*owned: tuple[object, Any]) -> None:
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
                    f"{STATE_VERSION}: a newer trialpod wrote it. Nothing was changed; upgrade trialpod to go on"
                )


def kind_of(owner: object) -> str:
    """Return the class of an algorithm, with those that it wraps: "SearchGenerator(OptunaSearch)"; "" for None.

    What only passes calls on, in a thread or from a record, is left out.
    """
    if owner is None:
        return ""
    wrapped = (getattr(owner, attribute, None) for attribute, _ in _WRAPPED)
    inner = next((found for found in wrapped if hasattr(found, "__dict__")), None)
    if getattr(owner, "transparent", False):
        return kind_of(inner)
    name = type(owner).__name__
    return f"{name}({kind_of(inner)})" if inner is not None and inner is not owner else name


def check_kinds(stored: Kinds | None, now: Kinds) -> None:
    """Refuse the state of another search algorithm or scheduler.

    Raises:
        InvalidInputError: the experiment was started with another one.
    """
    for what, before, given in (
        ("search algorithm", stored.search if stored is not None else "", now.search),
        ("scheduler", stored.scheduler if stored is not None else "", now.scheduler),
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
