"""What must hold of every run on one machine, or on several one after another."""

from __future__ import annotations

import json
import shutil
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim_oracles import in_order, misnested
from sim_plan import MAX_FAILURES, STEPS, may_end_early, repeats_of
from sim_storage import plain

from trialpod.errors import TrialpodError
from trialpod.storage.base import Storage
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.storage.registry import open_storage
from trialpod_operator.experiment.fsck.examine import Examination, examine
from trialpod_operator.experiment.replica.journal_layout import folder_of, piece_key
from trialpod_operator.experiment.stored import journal_id

if TYPE_CHECKING:
    from sim_local import Box, LocalWorld

PLACE = "bucket/runs/digits/"
LAST_S = 3.0
"""What was called durable within this time before a machine was lost may be lost with it."""
HINDERS_S = 12.0
"""What hindered the copying within this time before may have delayed it."""
HINDERS = frozenset({"run paused", "run killed", "run dies", "run told to end", "disk full", "second run"})


def judge_local(world: LocalWorld, notes: list[str]) -> list[str]:
    """Return what is wrong; `notes` gets what is worth knowing."""
    lines = _lines(world)
    return [*_history(world, notes), *_results(world, lines), *_ends(world, lines)]


def _stored(world: LocalWorld) -> Storage:
    return plain(world.values, PLACE) if world.plan.bucket else open_storage(str(world.box.directory))


def _complete(world: LocalWorld) -> Examination:
    """Examine the experiment with all records from the beginning on, that snapshots have replaced.

    What the last machine never had was replaced by a snapshot that it found in the bucket, of one of the others. One
    that was stopped there may have replaced the same segment by a snapshot that nobody ever saw; and the last machine
    may have had another history before, which was moved away. So they are tried in each order, until the segments are
    those of one journal, which is the one that the results and checkpoints belong to.
    """
    last = world.runs[-1].box
    journal = last.directory / ".trialpod" / "journal"
    newest = max(path.name for path in journal.glob("*.log"))  # a lost machine may have been further
    archives = [box.archive for box in world.boxes]
    best: Examination | None = None
    failed: TrialpodError | None = None
    for order in sorted(permutations(archives), key=lambda order: order[-1] != last.archive):
        folders = (*order, journal)
        kept = {path.name: path.read_bytes() for folder in folders for path in folder.glob("*.log")}
        kept = {name: data for name, data in kept.items() if name <= newest}
        try:
            found = examine(_with_journal(world, journal, kept))
        except TrialpodError as error:
            failed = error
            continue
        if best is None or _wrong(found) < _wrong(best):
            best = found
        if not any(_wrong(found)):
            break
    if best is None:
        raise failed or TrialpodError("there is no machine")
    return best


def _wrong(found: Examination) -> tuple[bool, int]:
    """Return what speaks against an examination: it is not replayed by the plan, and how much is wrong."""
    return found.replayed != "plan", sum(each.severity in ("error", "warning") for each in found.findings)


def _with_journal(world: LocalWorld, journal: Path, kept: dict[str, bytes]) -> Storage:
    if world.plan.bucket:
        whole = {key: data for key, data in world.values.items() if "/.trialpod/journal/" not in key}
        folder = folder_of(journal_id(whole[f"{PLACE}{EXPERIMENT_KEY}"], PLACE))
        return plain(whole | {f"{PLACE}{piece_key(folder, name, 0)}": data for name, data in kept.items()}, PLACE)
    shutil.rmtree(journal)
    journal.mkdir()
    for name, data in kept.items():
        (journal / name).write_bytes(data)
    return _stored(world)


def _history(world: LocalWorld, notes: list[str]) -> list[str]:
    """The history checker finds nothing, and the algorithms would choose the same again."""
    found: list[str] = []
    try:
        examined = examine(_stored(world), verify=True)
        complete = _complete(world)
    except TrialpodError as error:
        return [f"history: {error}"]
    if complete.records < examined.records or complete.replayed != "plan":
        found.append(f"history: {complete.records} records, replayed by {complete.replayed}, of {examined.records}")
    for each in [*examined.findings, *complete.findings]:
        what = f"history: {each.check} {each.trial}: {each.what}"
        if each.severity in ("error", "warning") or (
            each.check == "replay" and "started by a second process" not in each.what
        ):
            found.append(what)
        else:
            notes.append(what)
    ended = ("Succeeded", "Failed", *(["Stopped"] if may_end_early(world.plan.spec) else []))
    if examined.state not in ended:
        found.append(f"history: the journal says that the experiment is {examined.state!r}")
    return found


def _lines(world: LocalWorld) -> dict[str, list[dict[str, Any]]]:
    texts: dict[str, str] = {}
    if world.plan.bucket:
        for key, data in world.values.items():
            if key.endswith("/result.json"):
                texts[Path(key).parent.name] = data.decode()
    else:
        for path in world.box.directory.glob("*/result.json"):
            texts[path.parent.name] = path.read_text()
    return {
        "_".join(name.split("_")[1:3]): [json.loads(line) for line in text.splitlines()]
        for name, text in texts.items()
    }


def _results(world: LocalWorld, lines: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every durable result is there once, in order, and attempts do not mix."""
    found: list[str] = []
    for box in world.boxes:
        for trial_id, attempt in box.track.acked:
            wanted = _must_be_there(world, box, (trial_id, attempt))
            uids = {box.track.sent[trial_id, attempt][number] for number in range(1, wanted + 1)}
            missing = uids - {line["uid"] for line in lines.get(trial_id, ())}
            if missing:
                found.append(
                    f"durable: {wanted} results of {trial_id}/{attempt} on {box.name} were called durable, "
                    f"{len(missing)} of them are not stored"
                )
    for trial_id, results in lines.items():
        where = {
            uid: (box.track.began_at[trial, attempt], attempt, place)
            for box in world.boxes
            for (trial, attempt), numbers in box.track.sent.items()
            if trial == trial_id
            for place, uid in numbers.items()
        }
        found += in_order(trial_id, [where.get(line["uid"]) for line in results])
    return found


def _must_be_there(world: LocalWorld, box: Box, attempt: tuple[str, int]) -> int:
    """Return how many results of an attempt were called durable, and not just before the machine went.

    Another one may also have continued after its runs had ended.
    """
    assert world.finished_by is not None
    gone_s = box.gone_s
    if gone_s is None and box is world.finished_by.box:
        return box.track.acked[attempt]
    if gone_s is None:
        before = [run for run in world.runs if run.box is box and run.ended_s <= world.finished_by.ended_s]
        gone_s = max(run.ended_s for run in before)
    for fault in world.plan.faults:
        hinders = fault.kind.startswith("store") or fault.kind in HINDERS
        if hinders and fault.at <= gone_s and fault.at + fault.for_s >= gone_s - HINDERS_S:
            return 0
    told = box.track.acked_at[attempt]
    return max((count for when, count in told if when < gone_s - LAST_S), default=0)


def _ends(world: LocalWorld, lines: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every trial ended as what happened to it explains; where nothing decides, as without any fault."""
    found = []
    assert world.again is not None
    view, samples = world.again.view, world.plan.spec["numSamples"]
    counts = {status: count for status, count in view.counts.items() if count}
    least, most = 0 if may_end_early(world.plan.spec) else samples, samples + repeats_of(world.plan.spec)
    if not least <= sum(counts.values()) <= most or set(counts) - {"TERMINATED", "ERROR"}:
        found.append(f"end: {samples} trials were asked for; there are {counts}")
    for row in view.rows:
        harmed = sum(box.track.harmed[row.trial_id] for box in world.boxes)
        if row.failures > harmed and not world.excused:
            found.append(f"end: {row.trial_id} has {row.failures} failures, but was harmed {harmed}: {row.error}")
        if row.status == "ERROR":
            if row.failures != MAX_FAILURES + 1:
                found.append(f"end: {row.trial_id} is in ERROR after {row.failures} failures")
            continue
        if not world.plan.same_end:
            continue
        last = lines.get(row.trial_id, [{}])[-1]
        x = last.get("config", {}).get("x")
        found += misnested(row.trial_id, lines.get(row.trial_id, []))
        if last.get("training_iteration") != STEPS or x is None or abs(last["score"] - STEPS * x) > 1e-9:
            found.append(
                f"end: {row.trial_id} ended with {last.get('training_iteration')}, {last.get('score')}, x {x}"
            )
    return found
