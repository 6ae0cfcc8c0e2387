"""PyYAML's parser without its type rules: it tells plain scalars from quoted ones and leaves their meaning open.

Imports PyYAML at module level; import this module only where a manifest is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.resolver import BaseResolver

_STR = "tag:yaml.org,2002:str"


class _Untyped(BaseResolver):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return "plain" if implicit[0] else _STR
        return "seq" if kind is yaml.SequenceNode else "map"


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class NodeReader(CParser, _Untyped):
        """Composes the nodes of a stream; implicit tags are `plain`, `seq` and `map`."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _Untyped.__init__(self)

        @classmethod
        def nodes(cls, text: str) -> Iterator[Any]:
            """Yield the root node of each document."""
            reader = cls(text)
            while reader.check_node():
                yield reader.get_node()

else:
    from yaml.composer import Composer
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class NodeReader(Reader, Scanner, Parser, Composer, _Untyped):  # type: ignore[no-redef]
        """Composes the nodes of a stream; implicit tags are `plain`, `seq` and `map`."""

        def __init__(self, text: str) -> None:
            Reader.__init__(self, text)
            Scanner.__init__(self)
            Parser.__init__(self)
            Composer.__init__(self)
            _Untyped.__init__(self)

        @classmethod
        def nodes(cls, text: str) -> Iterator[Any]:
            """Yield the root node of each document."""
            reader = cls(text)
            while reader.check_node():
                yield reader.get_node()
