"""`trialpod fsck DIR|URI|NAME`: check an experiment's journal, files and checkpoints."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.cli.command import Command
from trialpod_operator.commands import target
from trialpod_operator.display.json_lines import strict
from trialpod_operator.display.words import one_line, plural

if TYPE_CHECKING:
    from trialpod_operator.experiment.fsck.examine import Examination
    from trialpod_operator.experiment.fsck.findings import Finding

EXIT_WHOLE, EXIT_ERRORS = 0, 1


def line(finding: Finding) -> str:
    """Return a finding in one line."""
    about = f"trial {finding.trial}: " if finding.trial else ""
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return one_line(f"{finding.severity}: {about}{finding.what}{remedy}")


def summary(found: Examination) -> str:
    """Return the last line."""
    counts = Counter(finding.severity for finding in found.findings)
    counted = [plural(counts[severity], severity) for severity in ("error", "warning", "note") if counts[severity]]
    what = (
        f"{plural(found.records, 'record')}, {plural(found.trials, 'trial')}, {plural(found.results, 'result')}, "
        f"{plural(found.checkpoints, 'checkpoint')}"
    )
    how = " read and verified" if found.verified and found.checkpoints else ""
    verdict = "OK" if found.whole else "CORRUPT"
    return one_line(f"{found.location}: {verdict}: {what}{how}; {', '.join(counted) or 'no findings'}")


def data(found: Examination) -> dict[str, Any]:
    """Return all for `--json`."""
    return {
        "place": found.location,
        "name": found.name,
        "whole": found.whole,
        "state": found.state,
        "records": found.records,
        "trials": found.trials,
        "results": found.results,
        "checkpoints": found.checkpoints,
        "verified": found.verified,
        "replayed_by": found.replayed,
        "findings": [msgspec.structs.asdict(finding) for finding in found.findings],
    }


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "location",
        metavar="DIR|URI|NAME",
        help="an experiment's directory, or s3://bucket/prefix/name, or its name in a cluster",
    )
    parser.add_argument("--verify", action="store_true", help="read every checkpoint and check sizes and checksums")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Print the findings; exit status 1 when there is an error."""
    from trialpod.storage.registry import open_storage
    from trialpod_operator.experiment.fsck.examine import examine

    location = target.location(options.location, options)
    if location is not None:
        return show(examine(open_storage(location.rstrip("/") or "/"), verify=options.verify), options)
    with target.stored_experiment(options.location, options) as (_, _, _, storage):
        return show(examine(storage, verify=options.verify), options)


def show(found: Examination, options: argparse.Namespace) -> int:
    """Print the findings as the options say; return the exit status."""
    if options.json:
        print(json.dumps(strict(data(found)), indent=2))
    else:
        order = {"error": 0, "warning": 1, "note": 2}
        for finding in sorted(found.findings, key=lambda each: order[each.severity]):
            print(line(finding))
        print(summary(found))
    return EXIT_WHOLE if found.whole else EXIT_ERRORS


command = Command("fsck", "check that nothing of an experiment is lost, damaged or contradictory", configure, run)
