"""`trialpod operator` as a process: kopf's login, discovery and watches, the probes, SIGTERM, the Lease."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api_http import HttpApi

from free_port import free_port
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.names import EXPERIMENT_LABEL, MANAGED_BY_LABEL, MANAGER, SHARDS_ANNOTATION
from trialpod_operator.cluster.shards.assignment import SHARDS, shares

TIMEOUT_S = 90.0
POLL_S = 0.05

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def api() -> Iterator[HttpApi]:
    made = HttpApi()
    yield made
    made.close()


class Operator:
    """A running operator, on ports of its own."""

    def __init__(self, api: HttpApi, folder: Path, name: str = "operator-1", **more: str) -> None:
        self.name = name
        self.probe_port, report_port = free_port(), free_port()
        self.log = folder / f"{name}.log"
        environment = {
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig(folder)),
            "TRIALPOD_NAMESPACES": "team",
            "TRIALPOD_OPERATOR_NAMESPACE": "team",
            "TRIALPOD_PROBE_PORT": str(self.probe_port),
            "TRIALPOD_REPORT_PORT": str(report_port),
            "TRIALPOD_WORK_DIR": str(folder / f"work-{name}"),
            "POD_NAME": name,
            **more,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("trialpod"), "operator"], env=environment, stdout=log, stderr=log
            )

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of an answer of its probes; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert self.process.poll() is None, f"ended while {what}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.log.read_text()}"
            time.sleep(POLL_S)


@pytest.fixture
def operator(api: HttpApi, tmp_path: Path) -> Iterator[Operator]:
    made = Operator(api, tmp_path)
    yield made
    made.process.kill()
    made.process.wait(TIMEOUT_S)


class TestOperatorProcess:
    def test_starts_watches_reconciles_and_stops(self, api: HttpApi, operator: Operator) -> None:
        operator.wait_until("ready", lambda: operator.get("/readyz")[0] == 200)
        watched = {"tuneexperiments", "tunetrials", "pods"}
        operator.wait_until("watching", lambda: api.watches_opened == watched)
        assert operator.get("/healthz")[0] == 200
        assert "trialpod_" in operator.get("/metrics")[1]

        experiment = {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": "broken"},
            "spec": {"trainable": {"entrypoint": "train:train"}, "searchSpace": {"lr": {"uniformm": [0, 1]}}},
        }
        api.create(paths.experiments("team"), experiment)

        def reasons() -> dict[str, str]:
            item = api.call(lambda: api.api.get("tuneexperiments", "broken"))
            return {each["type"]: each["reason"] for each in (item.get("status") or {}).get("conditions", [])}

        operator.wait_until("a condition", lambda: "Stalled" in reasons())
        lease = api.call(lambda: api.api.get("leases", "trialpod-operator"))
        assert lease["spec"]["holderIdentity"] == "operator-1"

        operator.process.send_signal(signal.SIGTERM)
        assert operator.process.wait(TIMEOUT_S) == 0, operator.log.read_text()
        lease = api.call(lambda: api.api.get("leases", "trialpod-operator"))
        assert not lease["spec"].get("holderIdentity")


def is_ready(operator: Operator) -> bool:
    return operator.get("/readyz")[0] == 200


@pytest.fixture
def deep() -> Iterator[dict[str, Any]]:
    """A search space of 1,500 levels; Python's decoder of JSON refuses 1,000 by default."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)  # of the stand-in of the API server
    space: dict[str, Any] = {"uniform": [0, 1]}
    for _ in range(1_500):
        space = {"a": space}
    yield space
    sys.setrecursionlimit(limit)


class TestDeeplyNested:
    def test_experiments_are_refused_and_stop_nothing(
        self, api: HttpApi, deep: dict[str, Any], tmp_path: Path
    ) -> None:
        def create(name: str, space: dict[str, Any]) -> None:
            spec = {"trainable": {"entrypoint": "train:train"}, "searchSpace": space}
            body = {
                "apiVersion": "trialpod.dev/v1alpha1",
                "kind": "TuneExperiment",
                "metadata": {"name": name},
                "spec": spec,
            }
            api.create(paths.experiments("team"), body)

        def stalled(name: str) -> str:
            item = api.call(lambda: api.api.get("tuneexperiments", name))
            found = {each["type"]: each for each in (item.get("status") or {}).get("conditions", [])}
            return str(found.get("Stalled", {}).get("message", ""))

        labels = {MANAGED_BY_LABEL: MANAGER, EXPERIMENT_LABEL: "other"}
        for name in ("listed", "watched"):
            if name == "watched":
                operator = Operator(api, tmp_path)
                operator.wait_until("ready", functools.partial(is_ready, operator))
            create(name, deep)
            api.create(paths.trials("team"), {"metadata": {"name": name, "labels": labels}, "spec": {"config": deep}})
        create("other", {"lr": {"uniformm": [0, 1]}})
        try:
            operator.wait_until("all are reconciled", lambda: all(map(stalled, ("listed", "watched", "other"))))
        finally:
            operator.process.kill()
            operator.process.wait(TIMEOUT_S)
        assert "nested more than 100 levels deep" in stalled("listed")
        assert "nested more than 100 levels deep" in stalled("watched")


@pytest.fixture
def pair(api: HttpApi, tmp_path: Path) -> Iterator[list[Operator]]:
    several = {"TRIALPOD_REPLICAS": "2", "TRIALPOD_POD_ADDRESS": "127.0.0.1"}
    made = [Operator(api, tmp_path, name, **several) for name in ("operator-1", "operator-2")]
    yield made
    for each in made:
        each.process.kill()
        each.process.wait(TIMEOUT_S)


class TestTwoOperatorProcesses:
    def test_share_the_shards_and_take_over(self, api: HttpApi, pair: list[Operator]) -> None:
        def owners() -> dict[str, int]:
            lease = api.call(lambda: api.api.get("leases", "trialpod-operator")) or {"metadata": {}}
            return shares((lease["metadata"].get("annotations") or {}).get(SHARDS_ANNOTATION, ""))

        def served() -> int:
            return sum(each.get("/metrics")[1].count("trialpod_shard_experiments{") for each in pair)

        def create(name: str) -> None:
            space = {"lr": {"uniformm": [0, 1]}}
            api.create(
                paths.experiments("team"),
                {
                    "apiVersion": "trialpod.dev/v1alpha1",
                    "kind": "TuneExperiment",
                    "metadata": {"name": name},
                    "spec": {"trainable": {"entrypoint": "train:train"}, "searchSpace": space},
                },
            )

        def told(*names: str) -> bool:
            items = [api.call(lambda name=name: api.api.get("tuneexperiments", name)) for name in names]
            return all((item.get("status") or {}).get("conditions") for item in items)

        first, second = pair
        for each in pair:
            each.wait_until("ready", lambda each=each: each.get("/readyz")[0] == 200)
        first.wait_until("shared", lambda: owners() == {"operator-1": SHARDS // 2, "operator-2": SHARDS // 2})
        first.wait_until("served", lambda: served() == SHARDS)
        for number in range(8):
            create(f"before-{number}")
        first.wait_until("all are reconciled", lambda: told(*(f"before-{number}" for number in range(8))))

        second.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        first.wait_until("taken over", lambda: owners() == {"operator-1": SHARDS})
        print(f"shards of a stopped operator were taken over in {time.monotonic() - began:.1f} s")
        for number in range(8):
            create(f"after-{number}")
        first.wait_until("all are reconciled", lambda: told(*(f"after-{number}" for number in range(8))))

        second.process.send_signal(signal.SIGCONT)
        second.wait_until(
            "shared again", lambda: owners() == dict.fromkeys(("operator-1", "operator-2"), SHARDS // 2)
        )
        first.wait_until("served again", lambda: served() == SHARDS)
        assert "is gone: others may serve" in second.log.read_text()

        first.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        second.wait_until("taken over", lambda: owners() == {"operator-2": SHARDS})
        print(f"shards of an operator that ended were taken over in {time.monotonic() - began:.1f} s")
        assert first.process.wait(TIMEOUT_S) == 0, first.log.read_text()
        assert "releasing shards" in first.log.read_text().splitlines()[-1], "nothing was lost, nothing went wrong"
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(TIMEOUT_S) == 0, second.log.read_text()
        assert [item["metadata"]["name"] for item in api.call(lambda: api.api.all("leases"))] == ["trialpod-operator"]
