"""What a sub-command of `trialpod` is: the object `command` of its module.

trialpod's own write name, help and cluster as literals: `trialpod --help` reads them without importing the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command.

    Attributes:
        name: as typed.
        help: one line for the list of commands: lower case, without a full stop.
        configure: adds the arguments to the command's own parser.
        run: does the work and returns the exit status. Raises TrialpodError for what the user must know.
        cluster: it works on a cluster only; the list has such commands under a heading of their own.
    """

    name: str
    help: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    cluster: bool = False
