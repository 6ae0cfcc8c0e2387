"""How the user calls this command: what printed commands begin with, so that they work as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

NAME = "trialpod"

_invoked = ""


def remember() -> None:
    """Keep how this process was called; a script that it runs later has arguments of its own."""
    global _invoked
    _invoked = sys.argv[0]


def program() -> str:
    """Return ``trialpod``, or its path when the shell would not find it by that name."""
    if os.path.basename(_invoked) != NAME or not os.path.isfile(_invoked):
        return NAME
    found = shutil.which(NAME)
    same = found is not None and os.path.samefile(found, _invoked)
    return NAME if same else shlex.quote(_invoked)
