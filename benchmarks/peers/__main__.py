"""trialpod, Katib and Ray Tune on KubeRay on the same cluster, one after the other, with the same trials.

    .venv/bin/python benchmarks/peers --prepare
    tools/cluster/exec .venv/bin/python benchmarks/peers [--systems trialpod katib kuberay] [--trials 30 200]

`make bench-peers` does both. The first gets what the peers are made of (Go modules, wheels, a database from Debian),
which the cluster's network does not lead to. For each system the second installs it as its maker ships it, runs
experiments of trivial trials, eight at a time, and measures; then it runs experiments in which a part of the system
is killed or a node drained (not with `--skip-failures`), and removes it. docs/peers.md says what is measured.

Every wait has a limit, so all ends. What was measured until then is printed, and kept with `--store`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import failures
import ingredients
import measure
import records
import report
from access import FOLDER, ROOT, Cluster, system
from cluster_access import not_inside
from katib import Katib
from kuberay import KubeRay
from own import Trialpod
from peer import Part, Peer, Run, Work

SYSTEMS: dict[str, type[Peer]] = {each.name: each for each in (Trialpod, Katib, KubeRay)}
IDLE_S = 20.0
QUIET_LIMIT_S = 90.0
QUIET_S = 3.0
"""For what controllers still do when an experiment, or a removal, has ended."""


def limit_s(work: Work) -> float:
    """Return how long an undisturbed experiment may take."""
    return 240 + 4.0 * work.trials


class Bench:
    """One run of the benchmark; `document` has what was measured until now."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.cluster = Cluster()
        self.document: dict[str, Any] = {
            "machine": report.describe_machine(),
            "commit": report.commit(ROOT),
            "systems": {},
        }
        if arguments.add:
            self.document["systems"] = json.loads(arguments.json.read_text())["systems"]

    def run(self) -> None:
        """Measure one system after the other."""
        for name in self.arguments.systems:
            peer = SYSTEMS[name]()
            before = self.document["systems"].get(name, {})
            figures: dict[str, Any] = {
                "machine": report.describe_machine(),
                "title": peer.title, "method": peer.method, "versions": peer.versions(),
                "experiments": before.get("experiments", {}), "failures": before.get("failures", {}),
            }  # fmt: skip
            self.document["systems"][name] = figures
            try:
                began = time.monotonic()
                peer.install()
                figures["install_s"] = round(time.monotonic() - began, 1)
                tell(f"{peer.title}: installed in {figures['install_s']} s")
                figures["idle"] = self.idle(peer)
                tell(f"{peer.title}: idle {figures['idle']}")
                for trials in self.arguments.trials:
                    figures["experiments"][str(trials)] = self.undisturbed(peer, Work(trials), figures["idle"])
                    self.keep()
                if not self.arguments.skip_failures:
                    self.disturbed(peer, figures["failures"])
            except (AssertionError, OSError, system.ClusterError) as error:
                figures["problem"] = str(error)[:2000]
                tell(f"{peer.title}: {figures['problem']}")
            finally:
                peer.remove()

    def idle(self, peer: Peer) -> dict[str, Any]:
        """Return what the installed system takes with nothing to do, once what was there before is removed."""
        measure.until(self._nothing_is_removed, QUIET_LIMIT_S, every_s=1.0)
        time.sleep(QUIET_S)
        memory = measure.Memory([*peer.namespaces, *peer.overhead_namespaces], peer.is_overhead).start()
        requests = measure.Requests(peer.namespaces)
        time.sleep(IDLE_S)
        found = requests.read()
        requests.close()
        rates = {name: round(count / IDLE_S, 3) for name, count in found.items()}
        return {**memory.stop(), "requests_per_s": rates}

    def _nothing_is_removed(self) -> bool:
        spaces = self.cluster.kubectl_json("get", "namespaces")["items"]
        return not any(each["metadata"].get("deletionTimestamp") for each in spaces)

    def space(self, peer: Peer, work: Work, retries: int = 0) -> Run:
        """Return an experiment in a namespace of its own."""
        return Run("trivial", self.cluster.make_namespace("peers", peer.space_labels), work, retries)

    def undisturbed(self, peer: Peer, work: Work, idle: dict[str, Any]) -> dict[str, Any]:
        """Run an experiment and return what it cost."""
        run = self.space(peer, work)
        spaces = [*peer.namespaces, *peer.overhead_namespaces, run.space.namespace]
        keys, load = measure.keys(), os.getloadavg()[0]
        requests = measure.Requests([*peer.namespaces, run.space.namespace])
        memory = measure.Memory(spaces, peer.is_overhead).start()
        try:
            began = peer.start(run)
            ended = measure.until(lambda: peer.state(run)[0], limit_s(work))
            outcome = failures.outcome(peer, run, began, None, ended=bool(ended))
            took = outcome["took_s"]
            added = measure.sizes(measure.keys() - keys)
            time.sleep(QUIET_S)
            sent = requests.read()
            found = records.read(run.records)
            per_trial = {
                "requests_own": sent["own"] - idle["requests_per_s"]["own"] * took,
                "requests_all": sum(sent.values()) - sum(idle["requests_per_s"].values()) * took,
                "objects": sum(count for count, _ in added.values()),
                "kilobytes": sum(size for _, size in added.values()) / 1000,
            }
            figures = {
                "first_trial_s": round(found[0].began - began, 2) if found else None,
                "end_s": took,
                **{name: round(value / work.trials, 2) for name, value in per_trial.items()},
                **memory.stop(),
                "kinds": {kind: list(each) for kind, each in added.items()},
                "outcome": outcome,
                "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            }
            if not ended:
                figures["problem"] = f"not within {limit_s(work):.0f} s: {outcome['state']}"
                tell(run.space.describe_failure()[-6000:])
            tell(f"{peer.title}, {work.trials} trials: {json.dumps(figures)}")
            return figures
        finally:
            memory.stop()
            requests.close()
            self.clear(run)

    def disturbed(self, peer: Peer, figures: dict[str, Any]) -> None:
        """Run an experiment that nothing disturbs, and one for each fault."""
        faults: dict[str, Part | None] = {f"kill -9: {part.name}": part for part in peer.parts}
        for name in ("none", *faults, "drain"):
            if self.arguments.faults and name.removeprefix("kill -9: ") not in self.arguments.faults:
                continue
            part = faults.get(name)
            run = self.space(peer, failures.WORK, part.retries if part else 0)
            try:
                if name == "none":
                    figures[name] = self.unharmed(peer, run)
                else:
                    figures[name] = failures.disturb(peer, run, part)
            except (AssertionError, OSError) as error:
                figures[name] = {"problem": str(error)[:1000]}
            finally:
                self.clear(run)
            tell(f"{peer.title}, {name}: {json.dumps(figures[name])}")
            self.keep()

    def unharmed(self, peer: Peer, run: Run) -> dict[str, Any]:
        """Run what the faults disturb, without one."""
        began = peer.start(run)
        ended = measure.until(lambda: peer.state(run)[0], failures.LIMIT_S)
        return failures.outcome(peer, run, began, None, ended=bool(ended))

    def keep(self) -> None:
        """Write what was measured until now."""
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps(self.document, indent=1) + "\n")

    def clear(self, run: Run) -> None:
        """Remove an experiment and what it wrote."""
        name = run.space.namespace
        self.cluster.kubectl("delete", "namespace", name, "--timeout=90s", check=False, timeout=120)
        system.run(["rm", "-rf", "--one-file-system", run.folder])


def tell(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}] {text}", flush=True)


def main() -> None:
    """Fetch, or measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prepare", action="store_true", help="get what the peers are made of, and measure nothing")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=[*SYSTEMS])
    parser.add_argument("--trials", nargs="*", type=int, default=[30, 200], help="sizes of the experiments")
    parser.add_argument("--skip-failures", action="store_true", help="kill nothing")
    parser.add_argument("--faults", nargs="+", help="only these: none, drain, or the name of a part, such as head")
    parser.add_argument("--json", type=Path, help="where all figures go, as soon as they are measured")
    parser.add_argument("--add", action="store_true", help="keep what the file of --json has, and measure more")
    parser.add_argument("--store", action="store_true", help="keep the run in benchmarks/peers/results")
    arguments = parser.parse_args()
    if arguments.add and not (arguments.json and arguments.json.exists()):
        parser.error("--add needs --json with a file of an earlier run")
    if arguments.prepare:
        ingredients.fetch(arguments.systems)
        return
    reason = not_inside()
    if reason:
        sys.exit(f"benchmarks/peers: {reason}; `make bench-peers` does all of it")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has the first one ignored
        signal.signal(number, lambda *_: sys.exit(143))
    FOLDER.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments)
    try:
        bench.run()
    finally:
        print(report.render(bench.document))
        bench.keep()
        if arguments.store:
            print(f"kept as {report.store(bench.document)}")


if __name__ == "__main__":
    main()
