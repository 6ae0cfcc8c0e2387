"""What an experiment's trials took and what came of it, in a line for each of trials and GPUs. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.display.words import duration

SHORT_S = 60.0
"""The closing lines of a run say nothing of less trial time."""

_WORDS = {"useful": "useful", "stopped": "stopped early", "lost": "lost to interruptions", "failed": "failed"}

Hours = Mapping[str, Mapping[str, float]]


def account_text(hours: Hours) -> str:
    """Return the lines about trials and GPUs, "" when nothing was taken.

    Args:
        hours: of each resource, by "used" and the outcomes, as `trialpod_operator.engine.accounting.hours` returns.
    """
    gpus: dict[str, float] = {}
    for name, parts in hours.items():
        if is_gpu(name):
            for part, amount in parts.items():
                gpus[part] = gpus.get(part, 0.0) + amount
    trials = hours.get("trial") or {}
    return "\n".join(_line(name, parts) for name, parts in (("trial", trials), ("GPU", gpus)) if parts.get("used"))


def is_worth_telling(hours: Hours) -> bool:
    """Return whether there is more to say than that everything was useful, or little."""
    parts = hours.get("trial") or {}
    wasted = sum(parts.get(part, 0.0) for part in _WORDS if part != "useful")
    return parts.get("used", 0.0) * 3600 >= SHORT_S and wasted > 0


def _line(name: str, parts: Mapping[str, float]) -> str:
    used = parts["used"]
    shares = [(parts.get(part, 0.0) / used, word) for part, word in _WORDS.items()]
    shares.append((1.0 - sum(share for share, _ in shares), "undecided"))
    told = ", ".join(f"{_percent(share)} {word}" for share, word in shares if share >= 0.0005)
    return f"{name} time: {duration(used * 3600)} ({told})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"
