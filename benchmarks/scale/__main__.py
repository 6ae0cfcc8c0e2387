"""One operator with thousands of trials on nodes that do not exist: what it costs, and how soon it reacts.

    .venv/bin/python benchmarks/scale [--scale 1.0] [--seconds 100] [--small 50] [--minutes 30] [--replicas 1]
    .venv/bin/python benchmarks/scale --running 5000 --finished 1000 --seconds 625 --spread 1 --interval 5 --calm 0
    .venv/bin/python benchmarks/scale --running 150 --finished 1500 --seconds 30 --calm 0 --large 8 --replicas 2

One large experiment keeps 1,000 trials running until 10,000 have finished (times `--scale`). On the way 50 small ones
are applied beside it, one after the other; at its full size the operator is killed and started again. With
`--replicas 2` two operators share the work, the one of the large experiment is killed, and the other takes over.
With `--large 4` the large experiment is four with a quarter of its trials each, so that the operators can share it.
The control plane is real, and so are the operator, the bucket and the protocol; nodes and pods are kwok's, and
`attempts` speaks for the pods. Needs what the test cluster needs (docs/cluster-tests.md): Linux, root, Go.

The trials of the large one take `--seconds` each, a quarter more or less (`--spread 0`: all the same).

With `--calm` the trials that begin after four fifths of them have finished take longer, and the last tenth is
measured by itself, with fifty more small experiments beside it: until then trials may end faster than the machine can
make pods, and latencies are those of waiting for a processor. The restart comes after that.

Whatever the scale, it takes ten times `--seconds`, `--calm` twice, and about three minutes. What has not finished in
time is stopped, so that all ends within `--minutes`; the exit status is 3 then, and 1 when something went wrong.

All of it shares the machine: of API server, etcd, kwok, bucket and attempts the processor time is printed beside the
operator's, which is what carries over to a cluster. Trials that follow each other faster than the machine can make
pods measure the machine: a longer `--seconds` makes them fewer.

Prints one line for each figure, with the load of the machine, then all of them as JSON, and at the end the table of
the goals beside the last run that was stored (`--store` keeps this one in benchmarks/scale/results).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import goals
import plane
from attempt import Seen, Work
from attempts import Attempts
from operator_figures import Received, Requests, etcd_bytes, quantile, sample

from trialpod_operator.cluster.kube import Kube, experiments, leases, pods, trials
from trialpod_operator.cluster.names import SHARDS_ANNOTATION
from trialpod_operator.cluster.shards.assignment import SHARDS, decode_map, shard_of

LARGE, SMALL = "large", "small"
RUNNING, FINISHED = 1000, 10_000
SMALL_WORK = Work(results=3, seconds=3.0)
SMALL_TRIALS, SMALL_AT_ONCE = 4, 2
RESULTS = 4
DEADLINE_S = 600.0
"""Maximum time of every wait, except for the trials themselves."""

TELL_EVERY_S = 15.0
WAITED_S = 1.0
"""A call whose answer took longer than this waited for the operator's restart."""

LAST_PART = 0.2
"""Of the time for everything: so much is kept for the restart and the end."""


def manifest(name: str, samples: int, at_once: int, results: int) -> dict[str, Any]:
    """Return an experiment under ASHA, whose every rung is a decision."""
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": name, "namespace": plane.NAMESPACE},
        "spec": {
            "trainable": {"entrypoint": "train:train"},
            "searchSpace": {
                "lr": {"loguniform": [1e-4, 1e-1]},
                "momentum": {"uniform": [0.1, 0.9]},
                "layers": {"choice": [2, 3, 4]},
                "optimizer": {"choice": ["sgd", "adam", "lamb"]},
            },
            "metric": "score",
            "mode": "max",
            "numSamples": samples,
            "maxConcurrentTrials": at_once,
            "seed": 7,
            "scheduler": {"name": "asha", "parameters": {"max_t": results, "grace_period": 1, "reduction_factor": 2}},
            "storage": {
                "uri": f"s3://{plane.BUCKET}/runs",
                "endpoint": plane.ENDPOINT,
                "credentialsSecret": "minio",
            },
        },
    }


class Bench:
    """One run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.running = arguments.running or max(4, round(RUNNING * arguments.scale))
        self.total = self.running + (arguments.finished or max(8, round(FINISHED * arguments.scale)))
        large = Work(RESULTS, arguments.seconds, arguments.spread, arguments.interval)
        self.work = {LARGE: large, SMALL: SMALL_WORK}
        self.attempts = Attempts(self.work, arguments.replicas)
        self.large_names = [f"{LARGE}-{number:02d}" for number in range(arguments.large)]
        for name in self.large_names:
            self.attempts.experiments[name] = self.attempts.experiments[LARGE]  # they are seen as one
        self.applied = 0  # small experiments
        self.requests = Requests()
        self.counted: Counter[str] = Counter()
        self.counted_in_all: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}
        self.curve: list[dict[str, float]] = []
        self.pids: dict[int, int] = {}
        self.began = time.monotonic()
        self.ends = self.began + 60.0 * arguments.minutes
        self.cut = ""
        self._printed_at = 0.0

    @property
    def large(self) -> Seen:
        """What was measured of the large experiment."""
        return self.attempts.experiments[LARGE]

    async def run(self) -> None:
        """Measure everything."""
        os.environ["KUBECONFIG"] = str(plane.KUBECONFIG)
        self.kube = await Kube.connect()
        for number in range(self.arguments.replicas):
            self.start_operator(number)
        await self.until(self.all_serve, "each operator serves its share", errors=True)
        await asyncio.sleep(3)
        following = asyncio.ensure_future(self.attempts.run())
        watching = asyncio.ensure_future(self.watch())
        try:
            await self.measure()
        finally:
            for task in (following, watching):
                task.cancel()
            await self.kube.close()

    async def measure(self) -> None:
        """Apply the experiments and see."""
        start = self.empty = sample(self.pids)
        self.tell("an operator without experiments", rss_mb=start.rss / 1e6, files=start.files)
        began = time.monotonic()
        longest = self.arguments.seconds * (1.0 + self.arguments.spread)
        results = round(longest / self.arguments.interval) if self.arguments.interval else RESULTS
        for name in self.large_names:
            parts = len(self.large_names)
            await self.apply(manifest(name, -(-self.total // parts), -(-self.running // parts), results))
        await self.until(lambda: self.large.assigned >= self.running, f"{self.running} trials run")
        full = sample(self.pids)
        self.tell(
            f"{self.running} trials run",
            seconds=time.monotonic() - began,
            cpu_s=full.cpu_s - start.cpu_s,
            rss_mb=full.rss / 1e6,
            files=full.files,
            reconcile_p50_s=quantile(start.metrics, full.metrics, "trialpod_reconcile_seconds", 0.5),
            reconcile_p99_s=quantile(start.metrics, full.metrics, "trialpod_reconcile_seconds", 0.99),
        )
        most, calm = self.total - self.running, self.arguments.calm
        await self.churn(f"from {self.large.finished} finished to half of them", most // 2)
        await self.beside(most * (6 if calm else 9) // 10)
        await self.churn("to four fifths of them" if calm else "to all of them", most * (8 if calm else 10) // 10)
        if calm:
            await self.calm_down(most * 9 // 10)
            await self.beside(most, goals.CALM)
            await self.churn(f"{goals.CALM}to all of them", most)
        await self.restart()
        await self.finish()

    async def churn(self, what: str, until: int) -> None:
        """Measure the large experiment between now and so many finished trials."""
        large, before, received = self.large, sample(self.pids), self.received.look()
        processors = plane.processor_times()
        self.count()
        self.counted.clear()
        done, began = large.finished, time.monotonic()
        lists = (large.decisions, large.to_next_pod, large.to_assignment)
        starts = [len(each) for each in lists]
        last = self.began + (1.0 - LAST_PART) * (self.ends - self.began)
        await self.until(
            lambda: large.finished >= until or time.monotonic() > last,
            f"{until} trials have finished",
            within_s=self.ends - time.monotonic(),
        )
        if large.finished < until:
            self.cut = f"{large.finished} of {until} trials had finished when their time was up"
        after, processors_after = sample(self.pids), plane.processor_times()
        seconds, number = time.monotonic() - began, large.finished - done
        decisions, to_next, to_assignment = (each[start:] for each, start in zip(lists, starts, strict=True))
        self.count()
        kinds = {key: count for key, count in self.counted.most_common() if countable(key)}
        self.tell(
            what,
            seconds=seconds,
            trials_per_s=number / seconds,
            cpu_cores=(after.cpu_s - before.cpu_s) / seconds,
            cpu_ms_per_trial=1000 * (after.cpu_s - before.cpu_s) / max(1, number),
            cpu_ms_per_trial_of=increase(processors, processors_after, 1000 / max(1, number), 1),
            rss_mb=after.rss / 1e6,
            rss_kb_per_trial=(after.rss - before.rss) / 1e3 / max(1, number),
            files=after.files,
            reconcile_p50_s=quantile(before.metrics, after.metrics, "trialpod_reconcile_seconds", 0.5),
            reconcile_p99_s=quantile(before.metrics, after.metrics, "trialpod_reconcile_seconds", 0.99),
            reconcile_step_p99_s=quantile(before.metrics, after.metrics, "trialpod_reconcile_step_seconds", 0.99),
            loop_lag_p50_s=quantile(before.metrics, after.metrics, "trialpod_loop_lag_seconds", 0.5),
            loop_lag_p99_s=quantile(before.metrics, after.metrics, "trialpod_loop_lag_seconds", 0.99),
            durable_p50_s=quantile(before.metrics, after.metrics, "trialpod_result_durable_seconds", 0.5),
            durable_p999_s=quantile(before.metrics, after.metrics, "trialpod_result_durable_seconds", 0.999),
            decision_p50_s=at(decisions, 0.5),
            decision_p99_s=at(decisions, 0.99),
            end_to_next_pod_p50_s=at(to_next, 0.5),
            end_to_next_pod_p99_s=at(to_next, 0.99),
            pod_to_work_p50_s=at(to_assignment, 0.5),
            pod_to_work_p99_s=at(to_assignment, 0.99),
            requests_per_trial=sum(kinds.values()) / max(1, number),
            received_kb_per_trial=(self.received.look() - received) / 1e3 / max(1, number),
            etcd_mb=etcd_bytes() / 1e6,
            requests={key: round(count / max(1, number), 3) for key, count in kinds.items()},
        )

    async def calm_down(self, until: int) -> None:
        """Have the trials of the large experiment take longer, and wait until hardly any other is left."""
        self.work[LARGE] = replace(self.work[LARGE], seconds=self.arguments.calm)
        began = time.monotonic()
        await self.until(
            lambda: self.large.finished >= until,
            f"{until} trials have finished",
            within_s=self.ends - time.monotonic(),
        )
        await asyncio.sleep(max(0.0, began + self.arguments.seconds * (1 + self.arguments.spread) - time.monotonic()))

    async def beside(self, before: int, prefix: str = "") -> None:
        """Apply the small experiments, one after the other, while the large one continues."""
        applied: dict[str, float] = {}
        start, large = sample(self.pids), self.large
        began, processors = time.monotonic(), plane.processor_times()
        decisions = len(large.decisions)
        for number in range(self.arguments.small):
            name = f"{SMALL}-{self.applied:02d}"
            self.applied += 1
            applied[name] = time.monotonic()
            await self.apply(manifest(name, SMALL_TRIALS, SMALL_AT_ONCE, SMALL_WORK.results))
            await asyncio.sleep(0.5)
            if large.finished >= before and number >= 9:
                break
        found = self.attempts.experiments
        await self.until(
            lambda: all(found[name].finished >= SMALL_TRIALS for name in applied), "the small ones have finished"
        )
        after, processors_after, seconds = sample(self.pids), plane.processor_times(), time.monotonic() - began
        first = [found[name].first_pod - at_ for name, at_ in applied.items()]
        answers = [each for name in applied for each in found[name].decisions]
        to_next = [each for name in applied for each in found[name].to_next_pod]
        self.tell(
            f"{prefix}{len(applied)} small experiments beside it",
            apply_to_first_pod_p50_s=at(first, 0.5),
            apply_to_first_pod_p99_s=at(first, 0.99),
            decision_p50_s=at(answers, 0.5),
            decision_p99_s=at(answers, 0.99),
            end_to_next_pod_p50_s=at(to_next, 0.5),
            end_to_next_pod_p99_s=at(to_next, 0.99),
            large_decision_p99_s=at(large.decisions[decisions:], 0.99),
            reconcile_p99_s=quantile(start.metrics, after.metrics, "trialpod_reconcile_seconds", 0.99),
            running=self.attempts.playing,
            files=after.files,
            cpu_cores_of=increase(processors, processors_after, 1 / seconds, 3),
        )

    async def restart(self) -> None:
        """Kill the operator at its full size, and see how soon it, or another one, is back."""
        before, attempts, several = self.large.pods, self.attempts, self.arguments.replicas > 1
        servers = [await self.server_of(name) for name in self.large_names]
        victim = servers[0]
        attempts.calls.interrupted.clear()
        killed = time.monotonic()
        plane.kill_operator(victim)
        del self.pids[victim]
        if not several:
            self.start_operator(victim)
        self.received = Received([*self.pids.values()])
        running = attempts.playing
        await self.until(lambda: attempts.calls.interrupted, "an attempt is answered again")
        first = time.monotonic() - killed
        served = running * servers.count(victim) // len(servers)
        enough = max(1, served * 8 // 10)
        await self.until(lambda: len(attempts.calls.interrupted) >= enough, f"{enough} attempts are answered again")
        most = time.monotonic() - killed
        if self.large.pods < self.total:
            await self.until(lambda: self.large.pods > before, "a pod is created again")
        pod = time.monotonic() - killed
        again = sample(self.pids)
        # Attempts call every ten seconds at the latest. Who calls when the operator is back waits for no more than a
        # new connection; so the last answer that an attempt has waited for says when all were answered.
        waited = [answered for broke, answered in attempts.calls.interrupted if answered - broke > WAITED_S]
        every = max(waited, default=killed) - killed
        what = f"fail-over to one of {len(self.pids)} others" if several else "kill -9 and restart at full size"
        self.tell(
            f"{goals.CALM if self.arguments.calm else ''}{what}",
            running=running,
            finished=self.large.finished,
            first_answer_s=first,
            answered_80_percent_s=most,
            answered_all_s=every,
            next_pod_s=pod if self.large.pods < self.total else None,
            cpu_s=again.cpu_s,
            rss_mb=again.rss / 1e6,
        )
        if several:
            began = time.monotonic()
            self.start_operator(victim)
            await self.until(self.all_serve, "each operator serves its share again", errors=True)
            self.received = Received([*self.pids.values()])
            self.tell("rebalanced after it came back", seconds=time.monotonic() - began)

    async def finish(self) -> None:
        """Stop the large experiment, and see what is left."""
        where = experiments(plane.NAMESPACE)
        for name in self.large_names:
            await self.kube.patch(where, name, {"metadata": {"annotations": {"trialpod.dev/stop": "true"}}})
        deadline = max(self.ends, time.monotonic() + 60.0)
        for name in self.large_names:
            while not ((await self.kube.get(where, name) or {}).get("status") or {}).get("completionTime"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"{name} does not say that it is over")
                await asyncio.sleep(0.5)
        while left := await self.kube.list(pods(plane.NAMESPACE)):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        self.count()
        kinds = {key: count for key, count in self.counted_in_all.most_common() if countable(key)}
        last = sample(self.pids)
        ended = sum({id(each): each.finished for each in self.attempts.experiments.values()}.values())
        self.tell(
            "at the end",
            trials=ended,
            tunetrials=len(await self.kube.list(trials(plane.NAMESPACE))),
            pods=len(left),
            files=last.files,
            rss_mb=last.rss / 1e6,
            requests_per_trial=sum(kinds.values()) / max(1, ended),
            etcd_mb=etcd_bytes() / 1e6,
        )

    # -- operators --

    def start_operator(self, number: int) -> None:
        """Start one of them."""
        self.pids[number] = plane.start_operator(number, self.arguments.replicas)

    def all_serve(self) -> bool:
        """Return whether each operator serves its share of the shards."""
        share = SHARDS // self.arguments.replicas
        wanted = share if self.arguments.replicas > 1 else 0
        return all(
            sum(name == "trialpod_shard_experiments" for name, _ in sample({number: pid}).metrics) >= wanted
            for number, pid in self.pids.items()
        )

    async def server_of(self, name: str) -> int:
        """Return the number of the operator that serves an experiment."""
        if self.arguments.replicas == 1:
            return 0
        item = await self.kube.get(experiments(plane.NAMESPACE), name) or {}
        lease = await self.kube.get(leases(plane.OPERATOR_ACCOUNT[0]), "trialpod-operator") or {}
        shard_map = decode_map(lease["metadata"]["annotations"][SHARDS_ANNOTATION])
        owner = shard_map.shards[shard_of(item["metadata"]["uid"])].owner
        return next(number for number in self.pids if plane.operator_pod(number) == owner)

    # -- parts --

    async def apply(self, document: dict[str, Any]) -> None:
        """Create an experiment, as kubectl would."""
        await self.kube.create(experiments(plane.NAMESPACE), document)

    async def watch(self) -> None:
        """Look at the operator every few seconds: the curve of its growth."""
        self.received = Received([*self.pids.values()])
        while True:
            await asyncio.sleep(2.5)
            self.count()
            try:
                now = sample(self.pids)
                self.received.look()
            except (OSError, ValueError):
                continue  # it is being restarted
            self.curve.append(
                {
                    "time": time.time(),
                    "rss_mb": now.rss / 1e6,
                    "cpu_s": now.cpu_s,
                    "files": now.files,
                    "finished": self.large.finished,
                    "running": self.attempts.playing,
                }
            )
            self.progress()

    def progress(self) -> None:
        """Say how far it is: on a terminal all the time, else now and then."""
        last, now = self.curve[-1], time.monotonic()
        line = (
            f"{(now - self.began) / 60:.1f} of {self.arguments.minutes:g} min: {last['running']:.0f} run, "
            f"{last['finished']:.0f} of {self.total} finished, {last['rss_mb']:.0f} MB, {last['cpu_s']:.0f} s, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}   ")
        elif now - self._printed_at >= TELL_EVERY_S:
            self._printed_at = now
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def count(self) -> None:
        """Take in the requests that were made."""
        found = self.requests.read()
        self.counted += found
        self.counted_in_all += found

    async def until(
        self, holds: Callable[[], Any], what: str, *, errors: bool = False, within_s: float = DEADLINE_S
    ) -> None:
        """Wait until something holds; ends all when it does not, or when an attempt or the operator is in trouble."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if holds():
                    return
            except OSError:
                if not errors:
                    raise
            if self.attempts.problems:
                raise SystemExit("an attempt was refused: " + self.attempts.problems[0])
            if not plane.operators_run():
                raise SystemExit("an operator has ended by itself")
            if time.monotonic() > deadline:
                lists = ("decisions", "to_next_pod", "to_assignment", "ends")
                seen = {name: value for name, value in asdict(self.large).items() if name not in lists}
                raise SystemExit(f"not within {within_s:.0f} s: {what}; {seen}; {self.attempts.playing} run")
            await asyncio.sleep(0.05)

    def tell(self, what: str, **figures: Any) -> None:
        """Print figures and keep them."""
        load = os.getloadavg()[0]
        self.figures[what] = {**figures, "load": load}
        print(f"\r{what} (load {load:.1f}){' ' * 40}")
        for name, value in figures.items():
            print(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
        sys.stdout.flush()


def countable(request: str) -> bool:
    """Return whether a request counts as a trial's: not the watches, and not the Lease."""
    return not request.startswith("watch ") and not request.endswith(" leases")


def at(values: list[float], q: float) -> float:
    """Return a quantile of measured values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, round(q * 1000) - 1)]


def increase(before: dict[str, float], after: dict[str, float], unit: float, digits: int) -> dict[str, float]:
    """Return what each program has taken between two looks at `processor_times`, in that unit."""
    return {name: round((spent - before.get(name, 0.0)) * unit, digits) for name, spent in after.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="1 = 1,000 running and 10,000 finished trials")
    parser.add_argument("--seconds", type=float, default=100.0, help="how long a trial of the large experiment takes")
    parser.add_argument("--spread", type=float, default=0.25, help="by which part of that they take more or less")
    parser.add_argument("--running", type=int, help="how many run at a time; 1,000 times `--scale` by default")
    parser.add_argument("--finished", type=int, help="how many finish; 10,000 times `--scale` by default")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between two results; 0 = four results")
    parser.add_argument("--calm", type=float, default=250.0, help="how long the last ones of them take; 0 = the same")
    parser.add_argument("--small", type=int, default=50, help="how many small experiments")
    parser.add_argument("--large", type=int, default=1, help="into how many experiments the large one is divided")
    parser.add_argument("--replicas", type=int, default=1, help="how many operators share the work")
    parser.add_argument("--minutes", type=float, default=30.0, help="maximum time; what still runs then is stopped")
    parser.add_argument("--json", type=Path, help="where all figures go")
    parser.add_argument("--store", action="store_true", help="keep the run in benchmarks/scale/results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # each attempt is a connection, at both its ends
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    running = arguments.running or RUNNING * arguments.scale
    nodes = -(-round(running * 1.5 + 100) // plane.PODS_PER_NODE)
    with plane.running(nodes):
        bench = Bench(arguments)
        try:
            asyncio.run(bench.run())
        finally:
            document = {"figures": bench.figures, "curve": bench.curve, "refused": bench.attempts.calls.refused}
            if arguments.json:
                arguments.json.write_text(json.dumps(document))
            print(json.dumps(bench.figures))
            print(
                f"\n{goals.machine()}\n{goals.table(bench.figures, goals.newest(arguments.scale, arguments.running))}"
            )
            if arguments.store:
                print(f"kept as {goals.store(bench.figures, vars(arguments))}")
        errors = plane.operator_errors()
        if errors:
            raise SystemExit(f"the operator logged {len(errors)} errors, the first: {errors[0]}")
        if bench.cut:
            print(f"cut short: {bench.cut}; give it more --minutes, or less --scale", file=sys.stderr)
            raise SystemExit(3)


if __name__ == "__main__":
    main()
