#!/usr/bin/env python3
"""agreement.py [--check]: write docs/ray-agreement.md, what was compared with Ray and what differs.

tests/data/ray_behaviours/SUBJECT.json holds what ask.py found on real Ray; differences.tsv names each behaviour that
differs here, with the reason; given_up.tsv those that Ray 2.60 refuses because it has given up what an older release
had and what works here: they count neither way. tests/local/test_ray_behaviours.py asks trialpod the same, and fails
when one of both is wrong.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

from trialpod import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ray-agreement.md"
ANSWERS = ROOT / "tests" / "data" / "ray_behaviours"
HERE = Path(__file__).resolve().parent
ACCIDENTS = frozenset({"AssertionError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError"})
"""What Ray raises where it does not look; a refusal that says what is wrong counts as the same."""
NAMES = {"TrialpodError": "TuneError", "TrialFailedError": "RayTaskError", "TrialDiedError": "ActorDiedError"}
"""Own names of classes that the alias gives under Ray's name (`trialpod.compat.ray.exceptions`)."""

_CAUSE = re.compile(r"RayTaskError\((\w+)\)")


def agree(ray: Any, here: Any) -> bool:
    """Return whether two answers are the same; an exception must be caught by who catches Ray's."""
    for own, name in NAMES.items():
        here = json.loads(json.dumps(here).replace(own, name))
    return _same(ray, here)


def _same(ray: Any, here: Any) -> bool:
    if isinstance(ray, list) and isinstance(here, list):
        return len(ray) == len(here) and all(map(_same, ray, here))
    if isinstance(ray, str) and isinstance(here, str):
        return ray == here or _same_cause(ray, here)
    if isinstance(ray, dict) and "raises" in ray:
        raised = here.get("raises", []) if isinstance(here, dict) else []
        return bool(raised) and (ray["raises"][0] in (*raised, "Exception") or ray["raises"][0] in ACCIDENTS)
    return bool(ray == here)


def _same_cause(ray: str, here: str) -> bool:
    """Return whether the error of a trial, "RayTaskError(ValueError)", is caught here by who catches Ray's."""
    causes = [match[1] for match in map(_CAUSE.fullmatch, (ray, here)) if match]
    if len(causes) != 2:
        return False
    own = getattr(errors, causes[1], None) or getattr(builtins, causes[1], object)
    return causes[0] in ACCIDENTS or causes[0] in [cls.__name__ for cls in own.__mro__]


def differences() -> dict[str, str]:
    """Return the reasons by "subject.probe.behaviour"."""
    return _table("differences.tsv")


def given_up() -> dict[str, str]:
    """Return what older releases of Ray had, by the behaviour that asks for it."""
    return _table("given_up.tsv")


def _table(name: str) -> dict[str, str]:
    with open(HERE / name) as stream:
        return {row[0]: row[1] for row in csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE) if row}


def answers(subject: str) -> dict[str, dict[str, Any]]:
    """Return what real Ray answered, by probe and behaviour."""
    found = json.loads((ANSWERS / f"{subject}.json").read_text())
    return {probe: answer["found"] for probe, answer in found.items()}


def unanswered() -> list[str]:
    """Return the probes, "subject: probe", that real Ray gave no answer to."""
    found = []
    for path in sorted((HERE / "behaviours").glob("*.py")):
        known = answers(path.stem) if path.stem in subjects() else {}
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        probes = [node.name for node in functions if any(ast.unparse(d) == "probe" for d in node.decorator_list)]
        found += [f"{path.stem}: {name}".replace("_", " ") for name in probes if name not in known]
    return found


def subjects() -> list[str]:
    """Return the subjects that real Ray was asked about."""
    return sorted(path.stem for path in ANSWERS.glob("*.json"))


def page() -> str:
    """Return the page."""
    reasons, older = differences(), given_up()
    lines = [
        "# How far trialpod agrees with Ray Tune",
        "",
        "The same small scripts ran on Ray 2.60 and, unchanged, on `trialpod.compat.ray`; values, types, files and",
        "exceptions were compared. An exception agrees when code that catches Ray's catches ours (`TuneError` and",
        "`RayTaskError` are names of own classes there); where Ray fails by accident (an `AssertionError`,",
        "a `KeyError` of its inside), any refusal agrees. The scripts are in",
        "`tools/compare_with_ray/behaviours`; decisions of schedulers and draws of variants are compared event by",
        "event elsewhere (`tests/data/ray_scheduler_decisions.json`, `ray_variants.json`).",
        "",
        "| subject | what it is about | behaviours | agree |",
        "|---|---|---|---|",
    ]
    total = agreeing = 0
    for subject in subjects():
        keys = [f"{subject}.{probe}.{key}" for probe, found in answers(subject).items() for key in found]
        keys = [key for key in keys if key not in older]
        differ = sum(key in reasons for key in keys)
        doc = ast.get_docstring(ast.parse((HERE / "behaviours" / f"{subject}.py").read_text())) or ""
        about = doc.splitlines()[0].rstrip(".")
        lines.append(f"| {subject.replace('_', ' ')} | {about} | {len(keys)} | {len(keys) - differ} |")
        total, agreeing = total + len(keys), agreeing + len(keys) - differ
    lines += [
        f"| all | | {total} | {agreeing} ({agreeing / total:.0%}) |",
        "",
        "## What differs, and why",
        "",
        "| subject | behaviour | why it is different here |",
        "|---|---|---|",
    ]
    for key, reason in reasons.items():
        subject, probe, behaviour = key.split(".", 2)
        words = f"{probe.replace('_', ' ')}: {behaviour}"
        lines.append(f"| {subject.replace('_', ' ')} | {words} | {reason} |")
    lines += [
        "",
        "## What Ray has given up and works here",
        "",
        "Ray 2.60 raises an error for these, because it has removed what an older release had; scripts of that age",
        "run here. They are in no column of the table above.",
        "",
        "| subject | what works |",
        "|---|---|",
        *[f"| {key.partition('.')[0].replace('_', ' ')} | {what} |" for key, what in older.items()],
    ]
    missing = unanswered()
    if missing:
        lines += [
            "",
            "## What was not asked",
            "",
            "Real Ray did not answer these scripts in the time that there was, or they failed there:",
            "",
            *[f"* {name}" for name in missing],
        ]
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description="write docs/ray-agreement.md")
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        print(f"{PAGE} is out of date; run tools/compare_with_ray/agreement.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
