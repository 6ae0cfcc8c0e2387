"""What nobody should send or store: values, changed documents, damaged bytes; as strategies for this folder."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import msgspec
from hypothesis import strategies as st

MORE = int(os.environ.get("FUZZ_MORE") or 30) if os.environ.get("HYPOTHESIS_PROFILE") == "search" else 1


DEEP = 40
"""Below so many levels documents are taken as they are: Python's own recursion has a limit."""


def examples(count: int) -> int:
    """Return how many examples a test takes: `count`, and many more in a search for new ones."""
    return count * MORE


def nested(depth: int, inside: Any = 0) -> Any:
    """Return lists in lists."""
    for _ in range(depth):
        inside = [inside]
    return inside


WRONG = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            -1,
            2**31,
            2**63 - 1,
            -(2**63),
            2**64 - 1,
            0.5,
            -0.0,
            float("nan"),
            float("inf"),
            1e308,
            "",
            "x" * 3000,
            "../../etc/passwd",
            "a\0b",
            "\u202etxt.exe",
            "\ud7ff\U0010ffff",
            "1_2",
            "checkpoint_000000",
            b"",
            b"\xff\xfe",
            [],
            [[]],
            {},
            {"": None},
            nested(90),
        ]
    ),
    st.text(max_size=8),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.lists(st.one_of(st.none(), st.integers(-3, 3), st.text(max_size=3)), max_size=3),
)
"""Values that MessagePack can carry, none of which is likely to be what a field wants."""

MESSAGE_PACK_ONLY = st.sampled_from(
    [
        msgspec.msgpack.Ext(1, b""),
        msgspec.msgpack.Ext(1, b"name\0\x80garbage"),
        msgspec.msgpack.Ext(5, b"from the future"),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        {1: 2},
        {(1, 2): 3},
        {None: 1, 1.5: 2, b"k": 3},
    ]
)
"""And those that only MessagePack can."""


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything in a document, `DEEP` levels down."""
    found: list[tuple[Any, Any]] = []
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(DEEP):
        for each in level:
            found += [(each, key) for key in (each if isinstance(each, dict) else range(len(each)))]
        level = _inside(level)
    return found


def _inside(containers: list[Any]) -> list[Any]:
    """Return the containers in containers."""
    values = [value for each in containers for value in (each.values() if isinstance(each, dict) else each)]
    return [value for value in values if isinstance(value, (dict, list))]


def copied(value: Any) -> Any:
    """Return a copy, however deep; values that strategies share are copied before they get into a document."""
    holder = [value]
    containers: list[Any] = [holder]
    while containers:
        each = containers.pop()
        for key in list(each) if isinstance(each, dict) else range(len(each)):
            if isinstance(each[key], (dict, list)):
                each[key] = each[key].copy()
                containers.append(each[key])
    return holder[0]


@st.composite
def changed(draw: st.DrawFn, original: Any, values: st.SearchStrategy[Any] = WRONG, most: int = 3) -> Any:
    """Return a copy of a document in which some values were exchanged, removed, added, or moved elsewhere."""
    document = copied(original)
    for _ in range(draw(st.integers(1, most))):
        there = places(document)
        if not there:
            return document
        container, key = draw(st.sampled_from(range(len(there))).map(lambda index, there=there: there[index]))
        how = draw(st.sampled_from(["exchange", "exchange", "remove", "add", "move"]))
        if how == "exchange":
            container[key] = copied(draw(values))
        elif how == "remove":
            del container[key]
        elif how == "add" and isinstance(container, dict):
            container[draw(st.text(max_size=5))] = copied(draw(values))
        elif how == "add":
            container.append(copied(draw(values)))
        else:
            source, name = draw(st.sampled_from(range(len(there))).map(lambda index, there=there: there[index]))
            container[key] = copied(source[name])
    return document


@st.composite
def stripped(draw: st.DrawFn, original: Any, kept: frozenset[str] = frozenset()) -> Any:
    """Return a copy of a document without some of its fields; `kept` stay, at every depth."""
    document = copied(original)
    for _ in range(draw(st.integers(1, 6))):
        there = [(container, key) for container, key in places(document) if key not in kept]
        if not there:
            return document
        container, key = there[draw(st.integers(0, len(there) - 1))]
        if isinstance(container, dict) and draw(st.booleans()):
            container[key] = None
        else:
            del container[key]
    return document


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes of which some were flipped, cut off, repeated, exchanged or added."""
    for _ in range(draw(st.integers(1, 3))):
        # What is drawn does not depend on the data, which may differ from run to run.
        at = draw(st.integers(0, 2**20)) % max(1, len(data))
        count, bit, more = draw(st.integers(1, 40)), draw(st.integers(0, 7)), draw(st.binary(max_size=12))
        how = draw(st.sampled_from(["flip", "flip", "cut", "drop", "repeat", "insert", "ones", "zeros"]))
        if how == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at]
        elif how == "drop":
            data = data[:at] + data[at + count :]
        elif how == "repeat":
            data = data[:at] + data[at : at + count] * 2 + data[at:]
        elif how == "insert":
            data = data[:at] + more + data[at:]
        else:
            data = data[:at] + (b"\xff" if how == "ones" else b"\0") * count + data[at + count :]
    return data
