"""What must hold of every run, whatever went wrong in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim_plan import MAX_FAILURES, STEPS, may_end_early, repeats_of
from sim_storage import plain

from trialpod.errors import TrialpodError
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod_operator.experiment.fsck.examine import examine
from trialpod_operator.experiment.fsck.findings import Finding
from trialpod_operator.experiment.replica.journal_layout import folder_of
from trialpod_operator.experiment.stored import journal_id

if TYPE_CHECKING:
    from sim_world import Hosted, SimWorld

SEEN_FAULTS = {"attempt dies", "user code fails", "messages duplicated", "messages delayed", "answers lost"}
"""With these an operator sees the failures of all pods, and soon."""

KNOWN_WITHIN_S = 15.0
"""Who writes behind the deletion of an experiment finds out within this, and takes away what it wrote."""


def judge(world: SimWorld, notes: list[str]) -> list[str]:
    """Return what is wrong; `notes` gets what is worth knowing."""
    found: list[str] = []
    for experiment in world.experiments:
        if experiment.deleted:
            found += _deleted(experiment)
            continue
        if experiment.owner != experiment.plan.namespace:
            found += _refused(experiment)
            continue
        lines = _lines(experiment)
        of_it = [*_history(experiment, notes), *_results(experiment, lines), *_ends(experiment, lines)]
        found += of_it if experiment is world.experiments[0] else [f"{experiment.key}: {each}" for each in of_it]
    return found


def _killed_with(experiment: Hosted, key: str) -> bool:
    """Whether the process that wrote an object was killed before it could know that it came too late."""
    writer, at = experiment.world.weather.writers[key]
    return writer.killed_at is not None and writer.killed_at - at < KNOWN_WITHIN_S


def _deleted(experiment: Hosted) -> list[str]:
    """Its data is gone if it was to go with it. That its objects are gone is seen before."""
    others = [each.prefix for each in experiment.world.experiments if each is not experiment]
    if not experiment.plan.deletes or experiment.prefix in others:
        return []  # what it has left is its user's, or what another one has there is
    left = sorted(key for key in experiment.world.values if key.startswith(experiment.prefix))
    left = [key for key in left if not _killed_with(experiment, key)]
    return [f"deleted: {experiment.key} has left {left[:5]}"] if left else []


def _refused(experiment: Hosted) -> list[str]:
    """An experiment whose place another one has taken has done nothing, and its user is told why."""
    told = " ".join(str(each.get("message")) for each in experiment.status.get("conditions") or [])
    found = []
    if f"holds an experiment of namespace {experiment.owner}" not in told:
        found.append(f"refused: {experiment.key} is told {told!r}")
    if experiment.trials() or experiment.track.sent:
        found.append(f"refused: {experiment.key} has {len(experiment.trials())} trials")
    return found


def _history(experiment: Hosted, notes: list[str]) -> list[str]:
    """The history checker finds nothing, and the algorithms would choose the same again.

    Once as it is stored, and once with all records from the beginning on, that snapshots have replaced.
    """
    found: list[str] = []
    world = experiment.world
    whole = {key: data for key, data in world.values.items() if "/.trialpod/journal/" not in key}
    findings: list[Finding] = []
    try:
        examined = examine(plain(world.values, experiment.prefix), verify=True)
        if not _left_out(experiment):
            complete = examine(plain(whole | world.archive, experiment.prefix))
            findings += complete.findings
            if complete.records < examined.records or complete.replayed != "plan":
                of = f"replayed by {complete.replayed}, of {examined.records}"
                found.append(f"history: {complete.records} records, {of}")
    except TrialpodError as error:
        return [f"history: {error}"]
    for each in [*examined.findings, *findings]:
        if each.severity == "error":
            found.append(f"history: {each.check} {each.trial}: {each.what}")
            continue
        if each.check == "replay" or each.severity == "warning":
            if "started by a second process" not in each.what:
                found.append(f"history: {each.check} {each.trial}: {each.what}")
        elif each.check == "garbage":
            world.kernel.counts["garbage"] += 1
            notes.append(f"{each.trial} {each.what}")
            # A mark stays for a day where an attempt ended in the middle of an upload, which takes no fault.
            allowed = "never written" in each.what or "is marked as such" in each.what
            if not world.plan.faults and not allowed:
                found.append(f"garbage without a fault: {each.trial} {each.what}")
    ended = ("Succeeded", "Failed", *(["Stopped"] if may_end_early(experiment.plan.spec) else []))
    if examined.state not in ended:
        found.append(f"history: the journal says that the experiment is {examined.state!r}")
    return found


def _left_out(experiment: Hosted) -> bool:
    """Whether the bucket never had the records of a segment, because it got the snapshot after it before them."""
    journal = journal_id(experiment.world.values[f"{experiment.prefix}{EXPERIMENT_KEY}"], experiment.prefix)
    start = f"{experiment.prefix}{folder_of(journal)}/"
    segments = {
        key.removeprefix(start).partition("/")[0] for key in experiment.world.archive if key.startswith(start)
    }
    left_out = [name for name in segments if experiment.world.archive.get(f"{start}{name}/{0:012d}") == b""]
    return bool(left_out) and min(left_out) < max(segments)


def _lines(experiment: Hosted) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for key, data in experiment.world.values.items():
        if key.startswith(experiment.prefix) and key.endswith("/result.json"):
            parts = key.removeprefix(experiment.prefix).split("/")[0].split("_")
            found["_".join(parts[1:3])] = [json.loads(line) for line in data.decode().splitlines()]
    return found


def _results(experiment: Hosted, lines: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every durable result is there once, in order, and attempts do not mix."""
    found = []
    sent = experiment.track.sent
    stored: Counter[tuple[str, int]] = Counter()
    for trial_id, results in lines.items():
        where = {uid: (attempt, number) for (trial, attempt), numbers in sent.items() if trial == trial_id
                 for number, uid in numbers.items()}  # fmt: skip
        places = [where.get(line["uid"]) for line in results]
        found += in_order(trial_id, places)
        for place in places:
            if place is not None:
                stored[trial_id, place[0]] += 1
    for (trial_id, attempt), count in experiment.track.acked.items():
        if stored[trial_id, attempt] < count:
            found.append(
                f"durable: {count} results of {trial_id}/{attempt} were called durable, "
                f"{stored[trial_id, attempt]} are stored"
            )
    return found


def _ends(experiment: Hosted, lines: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every trial ended as what happened to it explains; where nothing decides, as without any fault."""
    found = []
    counted, samples, harmed = experiment.status["trials"], experiment.samples, experiment.track.harmed
    done = counted["terminated"] + counted["error"]
    fewer = may_end_early(experiment.plan.spec) and done < counted["total"]
    more = repeats_of(experiment.plan.spec) * experiment.evaluations
    if not samples <= counted["total"] <= samples + more or (done != counted["total"] and not fewer):
        found.append(f"end: {samples} trials were asked for; the status says {counted}")
    trials = experiment.trials()
    if len(trials) != (done if fewer else counted["total"]):
        found.append(f"end: {len(trials)} TuneTrials, but {counted['total']} trials")
    for trial in trials:
        spec, status = trial["spec"], trial.get("status")
        trial_id = spec["trialId"]
        if status is None:
            found.append(f"end: {trial_id} has no status")
            continue
        if status["failures"] > harmed[trial_id]:
            found.append(f"end: {trial_id} has {status['failures']} failures, but was harmed {harmed[trial_id]}")
        if (hidden := _hidden(experiment, trial_id)) > status["failures"]:
            found.append(f"end: {trial_id} has {status['failures']} failures, but {hidden} were seen before its end")
        if status["state"] == "ERROR":
            if status["failures"] != MAX_FAILURES + 1:
                found.append(f"end: {trial_id} is in ERROR after {status['failures']} failures")
            continue
        if status["state"] != "TERMINATED":
            found.append(f"end: {trial_id} is {status['state']}")
            continue
        if trial_id in experiment.stopped or not experiment.plan.same_end:
            continue
        last = lines.get(trial_id, [{}])[-1]
        x = last.get("config", {}).get("x")
        found += misnested(trial_id, lines.get(trial_id, []))
        if last.get("training_iteration") != STEPS or x is None or abs(last["score"] - STEPS * x) > 1e-9:
            found.append(f"end: {trial_id} ended with {last.get('training_iteration')}, {last.get('score')}, x {x}")
    return found


def _hidden(experiment: Hosted, trial_id: str) -> int:
    """Return in how many attempts a rank above 0 had visibly failed before rank 0 said that it is done."""
    world, track = experiment.world, experiment.track
    if not {fault.kind for fault in world.plan.faults} <= SEEN_FAULTS:
        return 0  # the operator may have been away, or have taken the failure for a disruption's
    patience = world.plan.watch_delay_s + 3.0
    return sum(
        failed + patience < track.completed_at[key]
        for key, failed in track.failed_at.items()
        if key[0] == trial_id and key in track.completed_at
    )


def misnested(trial_id: str, lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return what of a trial's lines in ``result.json`` is not nested as it was reported."""
    return [
        f"results: {trial_id} has {line.get('nested')} beside the score {line.get('score')}"
        for line in lines
        if line.get("nested") != {"sum": line.get("score"), "of": {"x": line.get("config", {}).get("x")}}
    ]


def in_order(trial_id: str, places: Sequence[tuple[float, ...] | None]) -> list[str]:
    """Return what is wrong with the order of a trial's results.

    Args:
        trial_id: the trial.
        places: of each result what tells its attempt, and behind that its number in it; None: nobody sent it.
    """
    known = [place for place in places if place is not None]
    if len(known) != len(places):
        return [f"results: {trial_id} has a result that nobody sent"]
    found = []
    if known != sorted(set(known)):
        found.append(f"results: {trial_id} has results twice or out of order: {known}")
    for attempt in {place[:-1] for place in known}:
        numbers = [place[-1] for place in known if place[:-1] == attempt]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"results: {trial_id}/{attempt[-1]} has a gap: {numbers}")
    return found
