"""A checksum of what a pickle says, whichever process wrote it: sets in any order, classes by what they are.

The same script, run again, writes other bytes: sets and the constants of code have the order of their hashes, classes
that travel by value have a random number, and equal texts may be one object or two. None of that changes what is
loaded. So the pickle's program is read here, as `pickletools` reads it, and each object gets a checksum of its parts.

Invariants: nothing is loaded, imported or called. A pickle of another kind than the ones that this package writes
raises ValueError.
"""

from __future__ import annotations

import hashlib
import pickletools
from collections.abc import Callable
from typing import Any

_NESTED = frozenset({"of_main", "of_module"})
"""Functions of `trialpod.protocol.pickling` whose last argument is a pickle."""
_LEFT_OUT = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5, "code_of_file": 0}
"""Functions, and which of their arguments says nothing: a random number, the place of a file."""
_SAY_NOTHING = frozenset({"__file__", "__doc__"})
"""Keys: where a script is, and the text that a dataclass makes of its defaults, sets among them in any order."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_TUPLE": "tuple", "EMPTY_LIST": "list", "EMPTY_DICT": "dict", "EMPTY_SET": "set"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_MEMOIZED = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT"})
_GOTTEN = frozenset({"BINGET", "LONG_BINGET", "GET"})


class _Node:
    """An object: what makes it, of which parts, and what is done to it then."""

    __slots__ = ("digest", "done", "kind", "parts")

    def __init__(self, kind: str, parts: list[Any]) -> None:
        self.kind, self.parts = kind, parts
        self.done: list[tuple[str, list[Any]]] = []
        self.digest: bytes | None = None


class _Mark:
    pass


def pickle_digest(data: bytes) -> str:
    """Return the checksum of a pickle's contents.

    Raises:
        ValueError: it is not a pickle, or one with what is not known here.
    """
    return _digest(_read(data)).hex()


def _read(data: bytes) -> Any:
    stack: list[Any] = []
    memo: list[Any] = []
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _IGNORED:
            continue
        if name in _MEMOIZED:
            memo.append(stack[-1])
        elif name in _GOTTEN:
            stack.append(memo[int(argument or 0)])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_Node(_EMPTY[name], []))
        elif name == "MARK":
            stack.append(_Mark)
        elif (step := _STEPS.get(name)) is not None:
            step(stack)
        elif argument is not None and opcode.stack_after and not opcode.stack_before:
            stack.append(argument)
        else:
            raise ValueError(f"a pickle with {name}")
    if len(stack) != 1:
        raise ValueError("a pickle that leaves nothing, or more than one object")
    return stack[0]


def _marked(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1 - stack[::-1].index(_Mark)
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _taken(stack: list[Any], count: int) -> list[Any]:
    items = stack[-count:]
    del stack[-count:]
    return items


def _made(kind: str, count: int | None = None) -> Callable[[list[Any]], None]:
    def step(stack: list[Any]) -> None:
        stack.append(_Node(kind, _marked(stack) if count is None else _taken(stack, count)))

    return step


def _done(kind: str, count: int | None = None) -> Callable[[list[Any]], None]:
    def step(stack: list[Any]) -> None:
        items = _marked(stack) if count is None else _taken(stack, count)
        stack[-1].done.append((kind, items))

    return step


def _popped(stack: list[Any]) -> None:
    """Take what a call returned that is there for what it does to its first argument: it sets an object's state."""
    node = stack.pop()
    arguments = _arguments(node) if isinstance(node, _Node) and node.kind == "call" else None
    if not arguments or not isinstance(arguments[0], _Node):
        raise ValueError("a pickle that leaves out what it has made")
    arguments[0].done.append(("state", [node.parts[0], *arguments[1:]]))


_STEPS: dict[str, Callable[[list[Any]], None]] = {
    "TUPLE": _made("tuple"),
    **{name: _made("tuple", count) for name, count in _TUPLES.items()},
    "FROZENSET": _made("set"),
    "STACK_GLOBAL": _made("global", 2),
    "REDUCE": _made("call", 2),
    "NEWOBJ": _made("new", 2),
    "NEWOBJ_EX": _made("new", 3),
    "BUILD": _done("build", 1),
    "APPEND": _done("extend", 1),
    "APPENDS": _done("extend"),
    "SETITEM": _done("items", 2),
    "SETITEMS": _done("items"),
    "ADDITEMS": _done("add"),
    "POP": _popped,
}


def _digest(root: Any) -> bytes:
    """Return the checksum of an object; its parts come first, without recursion."""
    waiting = [(root, False)]
    open_nodes: set[int] = set()
    while waiting:
        node, entered = waiting.pop()
        if not isinstance(node, _Node) or node.digest is not None:
            continue
        if entered:
            node.digest = _sum(node)
        elif id(node) not in open_nodes:
            open_nodes.add(id(node))
            waiting.append((node, True))
            parts = [*node.parts, *(item for _, items in node.done for item in items)]
            waiting += [(part, False) for part in reversed(parts)]
    return _of(root)


def _sum(node: _Node) -> bytes:
    parts = _telling_parts(node)
    if node.kind == "call" and isinstance(nested := _nested(node), bytes):
        parts = [node.parts[0], *node.parts[1].parts[:-1], pickle_digest(nested)]
    digests = [_of(part) for part in parts]
    if node.kind == "set":
        digests.sort()
    found = hashlib.sha256(node.kind.encode())
    for digest in digests:
        found.update(digest)
    for kind, items in node.done:
        if kind == "items":
            pairs = zip(items[::2], items[1::2], strict=True)
            items = [each for key, value in pairs if key not in _SAY_NOTHING for each in (key, value)]
        digests = [_of(item) for item in items]
        if kind == "add":
            digests.sort()
        found.update(kind.encode())
        for digest in digests:
            found.update(digest)
    return found.digest()


def _of(part: Any) -> bytes:
    if isinstance(part, _Node):
        return part.digest or b"an object that holds itself"
    return hashlib.sha256(f"{type(part).__name__} {part!r}".encode("utf-8", "surrogatepass")).digest()


def _called(node: _Node) -> str:
    function = node.parts[0]
    return str(function.parts[1]) if isinstance(function, _Node) and function.kind == "global" else ""


def _arguments(node: _Node) -> list[Any] | None:
    arguments = node.parts[1]
    return arguments.parts if isinstance(arguments, _Node) and arguments.kind == "tuple" else None


def _nested(node: _Node) -> Any:
    arguments = _arguments(node)
    return arguments[-1] if arguments and _called(node) in _NESTED else None


def _telling_parts(node: _Node) -> list[Any]:
    """Return the parts of an object that say what it is."""
    if node.kind != "call" or (place := _LEFT_OUT.get(_called(node))) is None:
        return node.parts
    arguments = _arguments(node) or []
    return [node.parts[0], *(part for at, part in enumerate(arguments) if at != place)]
