"""What must hold of an experiment in the cluster once it is over, whatever happened on the way."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cluster_training
import yaml
from cluster_access import Cluster, KubectlError
from cluster_plan import FREQUENCY, SAME_END, STEP_S, Plan, spec_of
from experiments import Experiment

from trialpod.storage.checkpoints.manifest import Tombstone, decode
from trialpod.storage.layout import CLAIM_FILE, MANIFEST_FILE, checkpoint_index
from trialpod_operator.engine.engine import Engine
from trialpod_operator.experiment.fsck.examine import _Examiner, examine
from trialpod_operator.experiment.fsck.history import check_records

SOURCE = Path(cluster_training.__file__)
Rows = dict[str, list[dict[str, Any]]]
Outcome = list[tuple[dict[str, Any], dict[int, float]]]


def stored_rows(experiment: Experiment) -> Rows:
    """Return the lines of each trial's ``result.json``."""
    rows: Rows = {}
    for results in experiment.results():
        for row in results:
            rows.setdefault(str(row["trial_id"]), []).append(row)
    return rows


def outcome(rows: Rows) -> Outcome:
    """Return, for each trial in order, its parameters and its losses by iteration."""
    found = []
    for _, those in sorted(rows.items(), key=lambda item: item[0].rpartition("_")[2]):
        found.append(
            (dict(those[0]["config"]), {int(row["training_iteration"]): float(row["loss"]) for row in those})
        )
    return found


def undisturbed(plan: Plan, name: str, place: Path) -> Outcome:
    """Run the same experiment on this machine, where nothing happens to it; what it came to is kept below `place`."""
    spec = {**spec_of(plan, name), "trainable": {"source": SOURCE.read_text()}}
    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": name},
        "spec": spec,
    }
    text = json.dumps(document, sort_keys=True)
    kept = place / f"{name}-{plan.space_seed}.json"
    if kept.exists() and (found := json.loads(kept.read_text()))["of"] == text:
        return [(params, {int(key): value for key, value in losses.items()}) for params, losses in found["outcome"]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CHAOS_")}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        file = Path(folder, "experiment.yaml")
        file.write_text(yaml.safe_dump(document))
        command = [str(Path(sys.executable).parent / "trialpod"), "run", str(file), "--storage", folder, "-q"]
        subprocess.run(command, check=True, timeout=120, cwd=folder, env=environment, capture_output=True)
        rows: Rows = {}
        for path in Path(folder).glob("*/*/result.json"):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                rows.setdefault(str(row["trial_id"]), []).append(row)
    found = outcome(rows)
    place.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"of": text, "outcome": found}))
    return found


class _Again:
    """The training again, step by step: from where it was last, if the next one continued from there."""

    def __init__(self) -> None:
        self._model = cluster_training.Model()

    def loss_of(self, rates: list[list[float]]) -> float:
        """Return the loss after these steps."""
        done = self._model.rates
        on = not done or (
            len(done) <= len(rates)
            and done[:-1] == rates[: len(done) - 1]
            and done[-1][0] == rates[len(done) - 1][0]
            and done[-1][1] <= rates[len(done) - 1][1]
        )
        if not on:
            self._model = cluster_training.Model()
            done = self._model.rates
        had = [count for _, count in done]
        for place, (rate, count) in enumerate(rates):
            for _ in range(int(count) - (had[place] if place < len(had) else 0)):
                self._model.train(rate)
        return float(self._model.loss())


def wrong_training(rows: Rows) -> list[str]:
    """Return results that do not follow from the learning rates that they say they were trained with."""
    wrong = []
    for trial, those in rows.items():
        again = _Again()
        wrong += [
            f"{trial}: iteration {row['training_iteration']} was trained for {row['trained']} steps"
            for row in those
            if row["trained"] != row["training_iteration"]
        ]
        wrong += [
            f"{trial}: the loss of iteration {row['training_iteration']} is not that of its steps"
            for row in those
            if not math.isclose(again.loss_of(json.loads(row["rates"])), row["loss"], rel_tol=1e-12)
        ]
    return wrong[:10]


def wrong_order(rows: Rows) -> list[str]:
    """Return where the results of a trial skip iterations."""
    wrong = []
    for trial, those in rows.items():
        numbers = [int(row["training_iteration"]) for row in those]
        jumps = [(one, two) for one, two in zip([0, *numbers], numbers, strict=False) if two > one + 1]
        exploited = len({json.loads(row["rates"])[0][0] for row in those}) > 1 or "pbt" in trial
        if jumps and not exploited:
            wrong.append(f"{trial}: iterations {jumps[:5]} follow each other")
    return wrong


def wrong_end(plan: Plan, name: str, rows: Rows, place: Path) -> list[str]:
    """Compare the outcome with that of an undisturbed run, where it depends on nothing else."""
    if name not in SAME_END:
        return []
    expected, found = undisturbed(plan, name, place), outcome(rows)
    if [params for params, _ in expected] != [params for params, _ in found]:
        drawn, wanted = [params for params, _ in found], [params for params, _ in expected]
        return [f"{name}: the trials are {drawn}; those of an undisturbed run {wanted}"]
    wrong = []
    for (params, losses), (_, got) in zip(expected, found, strict=True):
        if set(losses) != set(got):
            wrong.append(f"{name}: iterations of {params} are {sorted(got)}, not {sorted(losses)}")
        elif any(not math.isclose(losses[key], got[key], rel_tol=1e-9) for key in losses):
            wrong.append(f"{name}: losses of {params} are not those of an undisturbed run")
    return wrong


def history(experiment: Experiment) -> tuple[Engine, list[str]]:
    """Read the journal in the bucket; return the engine at its end, and what the checker finds wrong anywhere."""
    examiner = _Examiner(experiment.storage, verify=False)
    reading = examiner._read()
    checked = check_records(reading.history, examiner._engine(examiner._plan(reading), reading))
    findings = examine(experiment.storage, verify=True).findings
    wrong = [f"{experiment.name}: {each.trial} {each.what}" for each in findings if each.severity == "error"]
    return checked.engine, wrong


def wrong_status(experiment: Experiment, engine: Engine) -> list[str]:
    """Compare what the API server says of the trials with the history."""
    wrong = []
    name = experiment.name
    status, state = experiment.status, engine.state
    shown = {each["spec"]["trialId"]: each.get("status") or {} for each in experiment.trials()}
    if set(shown) != set(state.trials):
        wrong.append(f"{name}: TuneTrials are {sorted(shown)}, trials {sorted(state.trials)}")
    for trial in state.trials.values():
        said = shown.get(trial.trial_id, {})
        checkpoint = trial.checkpoints[-1].name if trial.checkpoints else None
        pairs = {
            "state": (said.get("state"), trial.status),
            "attempt": (said.get("attempt"), trial.attempt),
            "iteration": (said.get("iteration"), trial.iteration),
            "failures": (said.get("failures"), trial.failures),
            "disruptions": (said.get("disruptions"), trial.disruptions),
            "checkpoint": ((said.get("checkpoint") or {}).get("name"), checkpoint),
        }
        wrong += [
            f"{name}: {trial.trial_id} shows {what} {one}, but it is {two}"
            for what, (one, two) in pairs.items()
            if one != two
        ]
    sums: Mapping[str, int] = {
        "failures": sum(trial.failures for trial in state.trials.values()),
        "disruptions": sum(trial.disruptions for trial in state.trials.values()),
    }
    wrong += [
        f"{name}: {what} are {status.get(what)}, not {total}"
        for what, total in sums.items()
        if status.get(what) != total
    ]
    counts, by_state = status.get("trials") or {}, defaultdict(int)
    for trial in state.trials.values():
        by_state[trial.status.lower()] += 1
    wrong += [
        f"{name}: {counts.get(what, 0)} trials are shown as {what}, {by_state[what]} are"
        for what in ("pending", "running", "paused", "terminated", "error")
        if counts.get(what, 0) != by_state[what]
    ]
    return wrong


def wrong_counts(plan: Plan, experiment: Experiment, engine: Engine) -> list[str]:
    """Return failures, which nobody's code had, and disruptions where nothing disrupted."""
    wrong = []
    for trial in engine.state.trials.values():
        if trial.failures or trial.status == "ERROR":
            wrong.append(f"{experiment.name}: {trial.trial_id} has {trial.failures} failures: {trial.error[:300]}")
        if trial.disruptions and not plan.disrupts:
            wrong.append(f"{experiment.name}: {trial.trial_id} was disrupted {trial.disruptions} times by nothing")
    return wrong


def leftovers(namespace: Cluster) -> list[str]:
    """Return pods that are still there."""
    try:
        return [f"the pod {pod['metadata']['name']} is left" for pod in namespace.list("pods")]
    except KubectlError as error:
        return [str(error)]


def litter(experiment: Experiment, engine: Engine) -> list[str]:
    """Return what is in the bucket and belongs to nothing: checkpoints that no trial knows.

    Tombstones may stay, and the claim of an attempt that ended before it came to write there.
    """
    storage = experiment.storage
    by_trial: dict[str, set[str]] = defaultdict(set)
    for key in storage.list():
        parts = key.split("/")
        if len(parts) >= 3 and checkpoint_index(parts[1]) is not None:
            by_trial[parts[0]].add(parts[1])
    wrong = []
    for dirname, names in by_trial.items():
        trial = next((each for each in engine.state.trials.values() if each.trial_id in dirname), None)
        known = {info.name for info in trial.checkpoints} if trial else set()
        for name in sorted(names - known):
            keys = storage.list(f"{dirname}/{name}")
            manifest = f"{dirname}/{name}/{MANIFEST_FILE}"
            if keys == [f"{dirname}/{name}/{CLAIM_FILE}"]:
                continue
            if keys != [manifest] or not isinstance(decode(storage.read(manifest), name), Tombstone):
                wrong.append(f"{experiment.name}: {dirname}/{name} is left, which its trial does not know: {keys}")
    return wrong


def most_repeated(plan: Plan) -> int:
    """Return how many steps a break may cost: those since the newest checkpoint that the operator knows."""
    return FREQUENCY + 6 + math.ceil(plan.behind_s / STEP_S)
