"""The command that ran an experiment, as it is given again: without the options of that one run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from trialpod.storage.lock import LockOwner
from trialpod_operator.display.words import one_line

ONE_RUN = frozenset({"--fresh", "--retry-failed", "--from-scratch"})
ONE_RUN_WITH_VALUE = frozenset({"--retry-trial"})


def rerun_arguments(holder: LockOwner, options: Sequence[str] = ()) -> list[str] | None:
    """Return the arguments of `trialpod` that run an experiment again; None when `trialpod run` did not run it.

    Args:
        holder: who ran it last.
        options: of `trialpod run`, to add.
    """
    at = next((i for i, word in enumerate(holder.arguments) if os.path.basename(word) == "trialpod"), None)
    words = holder.arguments[at + 1 :] if at is not None else []
    end = words.index("--") if "--" in words else len(words)
    if "run" not in words[:end]:
        return None
    kept: list[str] = []
    skip = False
    for word in words[:end]:
        option = word.partition("=")[0]  # --retry-trial=ID is one word
        if not skip and word not in ONE_RUN and option not in ONE_RUN_WITH_VALUE:
            kept.append(word)
        skip = not skip and word in ONE_RUN_WITH_VALUE
    return [*kept, *options, *words[end:]]


def rerun_command(holder: LockOwner | None, options: Sequence[str] = ()) -> str:
    """Return the command that runs an experiment again, for people; empty when it is not known.

    Args:
        holder: who ran it last.
        options: of `trialpod run`, to add; without that command there is none.
    """
    if holder is None:
        return ""
    arguments = rerun_arguments(holder, options)
    if arguments is not None:
        return one_line(f"trialpod {shlex.join(arguments)}")
    return "" if options else one_line(shlex.join(holder.arguments) or holder.command)
