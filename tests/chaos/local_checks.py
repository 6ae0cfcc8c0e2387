"""What must hold after a round of chaos: the violations of a `Round`, and what its faults have cost.

* The checker of `trialpod fsck --verify` finds nothing; no process and no temporary file is left.
* Each trial's ``result.json`` is, for its attempts in order, what the attempt's witness says that it reported: from
  its first result without a gap to some last one, which is not before the last that was called durable.
* A trial that was said to have ended never starts again.
* An attempt resumes from no earlier than the newest checkpoint that an attempt before was told to be recorded, and
  repeats no more than `most_repeated` steps.
* With the same algorithm an iteration of a trial has the same result, however often it ran; and what a deterministic
  algorithm decided is what it decides undisturbed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from local_plan import FREQUENCY, Plan
from local_round import ALWAYS_SAVED, Done, Round

from trialpod.storage.checkpoints.commit_queue import MAX_WAITING

LAST_SECONDS = 5.0
"""Of what a bucket does not have when the machine is lost: "about a second" on a quiet machine."""

IN_ANY_ORDER = ("random",)
"""What becomes of a trial has nothing to do with the others."""
CHANGES_CONFIGS = ("pbt",)
CHOOSES_AGAIN = ("pbt", "median")
"""They share time, so another trial always waits already. When an attempt ends before its time, it may go first, and
only without disruptions do trials run in the same order."""
KNOWS_FROM_THE_START = ("random", "asha", "asha_promotion", "hyperband", "median", "pbt")
"""Their configs are drawn; only those of other algorithms follow from results."""


def most_repeated(plan: Plan) -> int:
    """Return how many steps an attempt may repeat: those since the last checkpoint, and those whose upload waits."""
    frequency = 1 if plan.trainable == "function" and plan.algorithm in ALWAYS_SAVED else FREQUENCY
    return frequency * (MAX_WAITING + 3)


@dataclass(frozen=True)
class Attempt:
    """What the witness says of one."""

    trial: str
    number: int
    began: float
    ended: float
    cause: str
    durable: int
    durable_at: tuple[tuple[float, int], ...]
    saved: tuple[tuple[float, int], ...]  # when it was answered, and the iteration
    decisions: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def stamps(self) -> list[int]:
        return [row["stamp"] for row in self.rows]


def machines_lost(found: Round) -> list[float]:
    """Return when the machine was lost with all that was on it."""
    return [done.at for done in found.done if done.fault.kind == "lose machine"]


def attempts_of(found: Round) -> dict[str, list[Attempt]]:
    """Return each trial's attempts, in order.

    The number of an attempt may be given again when the bucket never heard of the first one.
    """
    lost_at = machines_lost(found)
    grouped: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for fact in found.facts:
        machine = sum(moment < fact["at"] for moment in lost_at)
        grouped[fact["trial"], machine, fact["attempt"]].append(fact)
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    for (trial, _, number), own in sorted(grouped.items()):
        durable = tuple((fact["at"], fact["durable"]) for fact in own if "durable" in fact)
        attempts[trial].append(
            Attempt(
                trial,
                number,
                own[0]["at"],
                own[-1]["at"],
                next((fact["end"] for fact in own if "end" in fact), ""),
                max((count for _, count in durable), default=0),
                durable,
                tuple((fact["at"], iteration) for fact in own for _, iteration in fact.get("saved", ())),
                tuple(fact["decision"] for fact in own if fact.get("decision")),
                tuple(fact for fact in own if "number" in fact),
            )
        )
    return dict(attempts)


def outcome(found: Round) -> dict[int, tuple[dict[str, Any], dict[int, float]]]:
    """Return of each trial, by its number, its config and the result of each iteration that counts at the end."""
    made = {}
    for trial_id, rows in found.rows.items():
        values = {row["training_iteration"]: row["error"] for row in rows}
        made[int(trial_id.rpartition("_")[2])] = (rows[-1]["config"], values)
    return made


def violations(found: Round, undisturbed: Round | None) -> list[str]:
    """Return what does not hold, in sentences; [] when all is well."""
    problems = list(found.problems)
    if problems:
        return problems
    problems += [f"process {pid} is left: {command}" for pid, command in found.left.items()]
    problems += [f"temporary files are left: {found.garbage}"] * bool(found.garbage)
    problems += _runs(found)
    problems += [
        f"fsck: {finding['check']}: {finding['what']} ({finding.get('trial')})"
        for finding in found.fsck["findings"]
        if finding["severity"] != "note"
    ]
    attempts = attempts_of(found)
    problems += _counts(found)
    for trial_id, own in attempts.items():
        problems += _durable(found, trial_id, own)
        problems += _progress(found, trial_id, own)
    problems += _ended_twice(found, attempts)
    problems += _values(found)
    if undisturbed is not None:
        problems += _difference(found, undisturbed)
    return problems


def _runs(found: Round) -> list[str]:
    problems = [
        f"a run ended with a traceback, status {run.status}: {run.errors[-1500:]}"
        for run in found.runs
        if "Traceback (most recent call last)" in run.errors and found.plan.driver == "manifest"
    ]
    if found.again != 0:
        problems.append(f"a further run of the finished experiment ended with status {found.again}")
    return problems


def _counts(found: Round) -> list[str]:
    results, wanted = found.results, found.plan.spec()["numSamples"]
    problems = []
    counts = results["counts"]
    if results["total"] != wanted or len(results["trials"]) != wanted or counts.get("TERMINATED") != wanted:
        problems.append(f"{wanted} trials should have ended well: {counts}, {len(results['trials'])} trials")
    blamed = ("kill trial", "fill disk")
    if not any(done.fault.kind in blamed for done in found.done):
        problems += [
            f"trial {trial['trial_id']} counts {trial['failures']} failures, but nothing of its own was at fault"
            for trial in results["trials"]
            if trial["failures"]
        ]
    kills = sum(done.fault.kind == "kill trial" for done in found.done)
    failures = sum(trial["failures"] for trial in results["trials"])
    if failures > kills and not any(done.fault.kind == "fill disk" for done in found.done):
        problems.append(f"{failures} failures were counted for {kills} trial processes that were killed")
    return problems


def _durable(found: Round, trial_id: str, own: list[Attempt]) -> list[str]:
    """Compare result.json with what was reported, attempt for attempt."""
    stamps = [row["stamp"] for row in found.rows.get(trial_id, ())]
    lost_at = machines_lost(found)
    at = 0
    for attempt in own:
        count = 0
        while count < len(attempt.rows) and at < len(stamps) and stamps[at] == attempt.stamps[count]:
            at, count = at + 1, count + 1
        durable = attempt.durable
        after = [moment for moment in lost_at if moment >= attempt.began]
        if after:
            durable = max(
                (number for when, number in attempt.durable_at if when < after[0] - LAST_SECONDS), default=0
            )
        if count < durable:
            told = f"attempt {attempt.number} was told that {durable} of its results are durable"
            return [f"trial {trial_id}: {told}; {count} are in result.json"]
    if at < len(stamps):
        return [
            f"trial {trial_id}: result {at + 1} of {len(stamps)} in result.json is none that follows in its reports"
        ]
    return []


def _steps(found: Round, own: list[Attempt]) -> Iterable[tuple[Attempt, Attempt, int]]:
    """Yield (attempt before, next one, iteration that the next one continued from), but not over a lost machine."""
    machines = machines_lost(found)
    before: Attempt | None = None
    for attempt in own:
        if not attempt.rows:
            continue
        if before is not None and not any(before.began <= moment <= attempt.ended for moment in machines):
            yield before, attempt, attempt.rows[0]["training_iteration"] - 1
        before = attempt


def _lost_after(found: Round, when: float) -> bool:
    """Return whether what was recorded then may be lost with the machine."""
    return any(moment - LAST_SECONDS <= when <= moment for moment in machines_lost(found))


def _progress(found: Round, trial_id: str, own: list[Attempt]) -> list[str]:
    problems = []
    if found.plan.algorithm in CHANGES_CONFIGS:
        return []  # it resumes from others' checkpoints; fsck has replayed which
    for before, attempt, start in _steps(found, own):
        saved = [each for one in own[: own.index(attempt)] for each in one.saved]
        newest = max((iteration for when, iteration in saved if not _lost_after(found, when)), default=0)
        if start < newest:
            resumed = f"attempt {attempt.number} continued from iteration {start}"
            problems.append(f"trial {trial_id}: {resumed}, though the checkpoint of iteration {newest} was recorded")
        last = before.rows[-1]["training_iteration"]
        heard = [row["training_iteration"] for row in before.rows if row["at"] < _unheard_from(found, before)]
        if max(heard, default=start) - start > most_repeated(found.plan):
            problems.append(f"trial {trial_id}: attempt {attempt.number} repeats {max(heard) - start} steps")
        if start > last:
            problems.append(f"trial {trial_id}: attempt {attempt.number} skips from iteration {last} to {start}")
    return problems


def _unheard_from(found: Round, attempt: Attempt) -> float:
    """Return from when on the run may have heard nothing of an attempt: it was stopped, or gone.

    What an attempt does then is repeated, if it ends before there is a run again.
    """
    deaf = [done.at for done in found.done if done.fault.kind in ("stop shell", "kill shell", "lose machine")]
    return min((moment for moment in deaf if moment >= attempt.began), default=math.inf)


def _ended_twice(found: Round, attempts: dict[str, list[Attempt]]) -> list[str]:
    machines = machines_lost(found)
    problems = []
    for at, event in found.told:
        if event.get("event") != "trial_ended":
            continue
        problems += [
            f"trial {event['trial_id']} ended, and attempt {attempt.number} of it began later"
            for attempt in attempts.get(event["trial_id"], ())
            if attempt.began > at and not any(at - LAST_SECONDS <= moment <= attempt.began for moment in machines)
        ]
    for trial_id, own in attempts.items():
        over = [one for one in own if one.cause in ("completed", "stopped")]
        if over and own[-1] is not over[0] and not machines:
            told = f"attempt {over[0].number} was told that its end, {over[0].cause}, is recorded"
            problems.append(f"trial {trial_id}: {told}, and attempt {own[-1].number} began later")
    return problems


def _values(found: Round) -> list[str]:
    """An iteration that ran twice must have come out the same: what it continued from was right."""
    if found.plan.algorithm in CHANGES_CONFIGS:
        return []
    problems = []
    for trial_id, rows in found.rows.items():
        values: dict[int, float] = {}
        for row in rows:
            iteration, error = row["training_iteration"], row["error"]
            if row["trained"] != iteration:
                problems.append(f"trial {trial_id}: iteration {iteration} has been trained {row['trained']} steps")
            if values.setdefault(iteration, error) != error:
                problems.append(f"trial {trial_id}: iteration {iteration} came out {values[iteration]}, then {error}")
    return problems


def disrupted(attempts: dict[str, list[Attempt]]) -> bool:
    """Return whether an attempt has ended before its time, as far as anybody could write that down."""
    orderly = ("paused", "exploited", "completed", "stopped")
    return any(
        attempt.cause not in orderly or attempt.number != number
        for own in attempts.values()
        for number, attempt in enumerate(own, 1)
    )


def held_up(attempts: dict[str, list[Attempt]]) -> bool:
    """Return whether a trial may have waited, so that others went first.

    It waits after an attempt that ended before its time and one after that which came no further. An attempt that was
    killed before it could write anything down is known by its number, which is missing; of what an attempt reported
    last the engine knows for certain only what it called durable.
    """
    for own in attempts.values():
        furthest, before, fruitless = 0, 0, 0
        for attempt in own:
            fruitless += attempt.number - before - 1
            if fruitless >= 2:
                return True
            iterations = [row["training_iteration"] for row in attempt.rows]
            if max(iterations[: attempt.durable], default=0) > furthest:
                fruitless = 0
            if attempt.cause not in ("paused", "exploited", "completed", "stopped"):
                fruitless += 1
            furthest, before = max([furthest, *iterations]), attempt.number
            if fruitless >= 2:
                return True
    return False


def _difference(found: Round, undisturbed: Round) -> list[str]:
    plan = found.plan
    attempts = attempts_of(found)
    in_order = plan.concurrency == 1 and not held_up(attempts) and not _lost_results(found)
    if plan.algorithm in CHOOSES_AGAIN:
        in_order = in_order and len(found.runs) == 1 and not disrupted(attempts)
    ours, theirs = outcome(found), outcome(undisturbed)
    problems = []
    if ours.keys() != theirs.keys():
        return [f"trials {sorted(ours)} instead of {sorted(theirs)}"]
    drawn = plan.algorithm in KNOWS_FROM_THE_START and plan.algorithm not in CHANGES_CONFIGS
    for number in sorted(ours):
        (config, values), (other_config, other_values) = ours[number], theirs[number]
        same_config = config == other_config
        if not same_config and (drawn or in_order):
            problems.append(f"trial {number} has the config {config} instead of {other_config}")
        if in_order or plan.algorithm in IN_ANY_ORDER:
            if values != other_values:
                problems.append(f"trial {number} has the results {values} instead of {other_values}")
        elif same_config and plan.algorithm not in CHANGES_CONFIGS:
            common = values.keys() & other_values.keys()
            wrong = [iteration for iteration in common if values[iteration] != other_values[iteration]]
            problems += [f"trial {number} has other results than undisturbed at {wrong}"] * bool(wrong)
    return problems


def _lost_results(found: Round) -> bool:
    """Return whether the bucket may not have had what the lost machine decided last."""
    return bool(machines_lost(found))


def costs(found: Round) -> list[tuple[str, int | None, float | None]]:
    """Return for each fault (kind, steps that were repeated, seconds until the next result).

    Steps are None where no trial resumed; seconds are None where no result came after it. What two faults in a row
    have cost counts for the later one.
    """
    attempts = attempts_of(found)
    reported = [fact["at"] for fact in found.facts if "number" in fact]
    made = []
    for index, done in enumerate(found.done):
        until = found.done[index + 1].at if index + 1 < len(found.done) else found.over
        steps = None
        for own in attempts.values():
            for before, attempt, start in _steps(found, own):
                if done.at <= attempt.began < until and before.cause not in ("paused", "exploited"):
                    steps = (steps or 0) + max(0, before.rows[-1]["training_iteration"] - start)
        after = next((at for at in reported if at > done.at + _took_s(done)), None)
        seconds = None if after is None or after > until else after - done.at
        made.append((done.fault.kind, steps, seconds))
    return made


def _took_s(done: Done) -> float:
    return 0.02 if done.until == 0.0 else done.until - done.at
