"""One round of chaos in the cluster: experiments, faults, healing, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster_outcome as outcomes
import cluster_witness as witness
from cluster_access import ROOT, Cluster, layout
from cluster_faults import NAMESPACE, Done, Faults, scale
from cluster_plan import STEP_S, Plan, spec_of
from experiments import Experiment, storage_spec
from operator_release import Operator
from testcluster.system import ClusterError

from trialpod.storage.base import KeyMissingError, StorageUnavailableError

PLACE = ROOT / "build/chaos-cluster"
WHOLE_S = 200.0
"""An experiment must be over this long after everything is whole again."""

COMPLETION_TIMEOUT_S = 45.0
"""And after this long nothing is left to do: statuses, files and pods are as they will stay."""

STILL_S = 3.0

AGAIN_S = 30.0
"""Maximum time that a fault without a target is retried."""


@dataclass
class Report:
    """What came of a round.

    Attributes:
        violations: what did not hold.
        costs: (kind of fault, seconds without training, steps done again) of each break in a trial's training.
        end_s: from everything being whole again to the end of the last experiment.
        phases: seconds until each part of the round was over: to find what makes rounds long.
    """

    plan: Plan
    violations: list[str] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    costs: list[tuple[str, float, int]] = field(default_factory=list)
    end_s: float = 0.0
    took_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    place: Path | None = None

    def line(self) -> str:
        """Say it in one line."""
        did = sum(not done.missed for done in self.done)
        said = f"; VIOLATIONS {len(self.violations)}: {self.violations[0]}" if self.violations else "; all holds"
        return (
            f"seed {self.plan.seed}: {self.took_s:.0f} s, {did} faults, over {self.end_s:.0f} s after the last; "
            f"{self.plan}{said}"
        )


def manifest(plan: Plan, name: str, namespace: Cluster, folder: Path) -> dict[str, Any]:
    """Return the experiment as it is applied."""
    container = {
        "name": "trial",
        "env": [{"name": "CHAOS_STEP_S", "value": str(STEP_S)}, {"name": "CHAOS_WITNESS", "value": "/witness"}],
        "volumeMounts": [{"name": "witness", "mountPath": "/witness"}],
    }
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    pod = {
        "terminationGracePeriodSeconds": 15,
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", **toleration},
            {"key": "node.kubernetes.io/unreachable", **toleration},
        ],
        "containers": [container],
        "volumes": [{"name": "witness", "hostPath": {"path": str(folder / name), "type": "Directory"}}],
    }
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": name, "namespace": namespace.namespace},
        "spec": {
            **spec_of(plan, name),
            "trainable": {"source": outcomes.SOURCE.read_text()},
            "storage": storage_spec(namespace),
            "template": {"spec": pod},
        },
    }


def run_round(cluster: Cluster, operator: Operator, plan: Plan, *, end_s: float = WHOLE_S) -> Report:
    """Run a plan; the cluster is whole afterwards, the round's namespace gone, and its number of operators there."""
    began = time.monotonic()
    report = Report(plan)
    namespace = cluster.make_namespace("chaos")
    folder = layout.STATE / "chaos" / namespace.namespace
    for name in plan.experiments:
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o777)  # trials run as another user
    faults = Faults(operator, namespace)
    try:
        with _logs_kept((NAMESPACE, namespace.namespace)) as logs:
            try:
                scale(operator, plan.operators)
                _disturb(plan, namespace, folder, faults, report, end_s)
            except (Exception, ClusterError) as error:  # noqa: BLE001 - whatever it is, the round is red, its traces kept
                report.violations.append(f"{type(error).__name__}: {str(error)[:1000]}")
            finally:
                report.done = faults.done
                if report.violations:
                    _keep(report, namespace, folder, logs)
    finally:
        try:
            faults.heal()
        except (AssertionError, ClusterError) as error:
            report.violations.append(f"the cluster did not become whole: {str(error)[:1000]}")
        cluster.delete_namespace(namespace.namespace)
        shutil.rmtree(folder, ignore_errors=True)
    report.took_s = time.monotonic() - began
    return report


def _disturb(plan: Plan, namespace: Cluster, folder: Path, faults: Faults, report: Report, end_s: float) -> None:
    experiments = [Experiment.apply(namespace, manifest(plan, name, namespace, folder)) for name in plan.experiments]

    def training() -> bool:
        lives = [witness.read(folder / name) for name in plan.experiments]
        return all(any(len(life.steps) > 1 for life in those) for those in lives)

    started = time.monotonic()

    def over(phase: str) -> None:
        report.phases[phase] = round(time.monotonic() - started, 1)

    namespace.wait_for(training, "all experiments train", 120)
    over("begun")
    began = time.monotonic()
    waiting = [(fault.at, fault) for fault in plan.faults]
    while waiting or faults.going:
        now = time.monotonic() - began
        if waiting and waiting[0][0] <= now:
            _, fault = waiting.pop(0)
            done = faults.begin(fault)
            # What it could be done to is most often there again soon, after the fault before it.
            if done.missed and now < fault.at + AGAIN_S:
                faults.forget(done)
                waiting.append((now + 2.0, fault))
                waiting.sort(key=lambda item: item[0])
        time.sleep(0.1)
    over("faults")
    faults.heal()
    over("healed")
    whole = time.monotonic()
    for experiment in experiments:
        left = max(1.0, end_s - (time.monotonic() - whole))
        namespace.wait_for(lambda each=experiment: each.status.get("completionTime"), f"{experiment.name} ends", left)  # type: ignore[misc]
    report.end_s = time.monotonic() - whole
    over("ended")
    _check_outcome(plan, namespace, experiments, report)
    over("checked")
    for experiment in experiments:
        lives, rows = witness.read(folder / experiment.name), outcomes.stored_rows(experiment)
        for found in witness.breaks(lives, STILL_S):
            kind = _cause(faults.done, found)
            report.costs.append((kind, round(found.resumed - found.stopped, 1), found.repeated))
            if found.repeated > outcomes.most_repeated(plan):
                report.violations.append(
                    f"{experiment.name}: {found.trial}: {found.repeated} steps were done again after {kind}"
                )
        wrong = witness.lost(lives, rows) + outcomes.wrong_training(rows)
        if experiment.name != "pbt":
            wrong += outcomes.wrong_order(rows)
        report.violations += [f"{experiment.name}: {each}" for each in wrong]
        report.violations += outcomes.wrong_end(plan, experiment.name, rows, PLACE / "undisturbed")
    over("checked")


def _check_outcome(plan: Plan, namespace: Cluster, experiments: list[Experiment], report: Report) -> None:
    """Check what becomes true within a while; report what does not."""
    wrong: list[str] = []

    def holds() -> bool:
        wrong[:] = outcomes.leftovers(namespace)
        for experiment in experiments:
            # Read again where a snapshot replaced it meanwhile, or a busy machine's store gave no answer in time.
            try:
                engine, errors = outcomes.history(experiment)
                wrong.extend(errors)
                wrong.extend(outcomes.wrong_status(experiment, engine))
                wrong.extend(outcomes.wrong_counts(plan, experiment, engine))
                wrong.extend(outcomes.litter(experiment, engine))
            except (KeyMissingError, StorageUnavailableError) as error:
                wrong.append(f"{experiment.name}: {error}")
        return not wrong

    with contextlib.suppress(AssertionError):
        namespace.wait_for(holds, "every experiment is over", COMPLETION_TIMEOUT_S, every=2.0)
    report.violations += wrong


def _cause(done: list[Done], found: witness.Break) -> str:
    """Return the kind of the latest fault that may be why."""
    before = [
        each for each in done if not each.missed and each.began < found.resumed and each.began < found.stopped + 3
    ]
    going = [each for each in before if not each.ended or each.ended + 20 > found.stopped]
    if going:
        return max(going, key=lambda each: each.began).fault.kind
    return "nothing"


@contextlib.contextmanager
def _logs_kept(namespaces: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Hold the log files of all containers of some namespaces open: they can be read when the pods are gone."""
    held: dict[str, Any] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for node in layout.NODES:
                for namespace in namespaces:
                    found: list[Path] = []
                    with contextlib.suppress(OSError):  # a pod's folder goes while it is listed
                        found = list((node.state / "pod-logs").glob(f"{namespace}_*/*/*.log"))
                    for path in found:
                        name = f"{path.parts[-3].split('_')[1]}-{path.parts[-3].rpartition('_')[2][:6]}-{path.name}"
                        if name not in held:
                            with contextlib.suppress(OSError):
                                held[name] = open(path, "rb")  # noqa: SIM115 - that is the point

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield held
    finally:
        over.set()
        watcher.join()
        for file in held.values():
            file.close()


def _keep(report: Report, namespace: Cluster, folder: Path, logs: dict[str, Any]) -> None:
    """Write down everything that helps to understand a violation."""
    place = PLACE / f"seed-{report.plan.seed}-{os.getpid()}"
    place.mkdir(parents=True, exist_ok=True)
    report.place = place
    (place / "plan.json").write_text(report.plan.text())
    (place / "violations.txt").write_text("\n".join(report.violations) + "\n")
    faults = [
        {
            "kind": each.fault.kind,
            "began": each.began,
            "ended": each.ended,
            "about": each.about,
            "missed": each.missed,
        }
        for each in report.done
    ]
    (place / "faults.json").write_text(json.dumps(faults, indent=1))
    for name, file in list(logs.items()):
        with contextlib.suppress(OSError, ValueError):
            (place / name).write_bytes(file.read())
    for name, arguments in {
        "objects.yaml": ("get", "te,tt,pods", "-o", "yaml"),
        "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
        "pods.txt": ("get", "pods", "-A", "-o", "wide"),
    }.items():
        with contextlib.suppress(Exception):
            (place / name).write_text(namespace.kubectl(*arguments, check=False))
    (place / "network.txt").write_text(_network(namespace))
    shutil.copytree(folder, place / "witness", dirs_exist_ok=True)
    with contextlib.suppress(Exception):
        drive = layout.MINIO_DATA / "drive" / layout.MINIO_BUCKET / namespace.namespace
        shutil.copytree(drive, place / "bucket", dirs_exist_ok=True)


def _network(namespace: Cluster) -> str:
    """Return what the pods that still run see of the network, and the cluster's rules."""
    program = "import socket; print(socket.getaddrinfo('minio.minio.svc', 9000)[0])"
    found = []
    for command in (["iptables-save"], ["ip", "neigh"], ["ip", "addr"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        found.append(f"$ {' '.join(command)}\n{done.stdout}")
    with contextlib.suppress(Exception):
        for pod in namespace.list("pods"):
            name = pod["metadata"]["name"]
            said = namespace.exec(name, "python", "-c", program, check=False, timeout=40)
            said += namespace.exec(name, "cat", "/etc/resolv.conf", "/proc/net/udp", check=False, timeout=40)
            found.append(f"$ in {name} {pod['status'].get('podIP')}: {program}\n{said}")
    return "\n".join(found)
