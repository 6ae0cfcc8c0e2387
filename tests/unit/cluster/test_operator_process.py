"""`trialpod operator` as a process: kopf's login, discovery and watches, the probes, SIGTERM, the Lease."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_api_http import HttpApi

from trialpod_operator.cluster import kube as paths

TIMEOUT_S = 90.0
POLL_S = 0.05

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def api() -> Iterator[HttpApi]:
    made = HttpApi()
    yield made
    made.close()


class Operator:
    """A running operator, on ports of its own."""

    def __init__(self, api: HttpApi, folder: Path) -> None:
        self.probe_port, report_port = free_ports(2)
        self.log = folder / "operator.log"
        environment = {
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig(folder)),
            "TRIALPOD_NAMESPACES": "team",
            "TRIALPOD_OPERATOR_NAMESPACE": "team",
            "TRIALPOD_PROBE_PORT": str(self.probe_port),
            "TRIALPOD_REPORT_PORT": str(report_port),
            "TRIALPOD_WORK_DIR": str(folder / "work"),
            "POD_NAME": "operator-1",
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
