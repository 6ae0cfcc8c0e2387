"""An exported study in a running optuna-dashboard, and optuna-dashboard as `trialpod ui --optuna` serves it."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sample_experiment import SampleExperiment

from free_port import free_port
from trialpod.cli.main import main

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

TRIALPOD = [sys.executable, "-c", "import sys; from trialpod.cli.main import main; sys.exit(main(sys.argv[1:]))"]
DASHBOARD = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()"]


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    sample = SampleExperiment(tmp_path / "e", [1, 2, 3])
    sample.report(sample.trials[0], 1.0, 3.0)
    sample.end(sample.trials[0])
    return sample


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(address: str, path: str, cookie: str = "") -> tuple[int, http.client.HTTPMessage, bytes]:
    """Ask until somebody listens there."""
    deadline = time.monotonic() + 90
    while True:
        connection = http.client.HTTPConnection(address, timeout=60)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def trials(address: str, cookie: str = "") -> list[dict[str, Any]]:
    """Return the trials of the only study that the dashboard at that address shows."""
    (study,) = json.loads(ask(address, "/api/studies", cookie)[2])["study_summaries"]
    found: list[dict[str, Any]] = json.loads(ask(address, f"/api/studies/{study['study_id']}", cookie)[2])["trials"]
    return found


class TestDashboard:
    def test_opens_an_exported_study(self, sample: SampleExperiment, tmp_path: Path) -> None:
        file = tmp_path / "study.log"
        assert main(["export", str(sample.folder), "--optuna-journal", str(file)]) == 0
        port = free_port()
        with running([*DASHBOARD, str(file), "--host", "127.0.0.1", "--port", str(port)]):
            found = trials(f"127.0.0.1:{port}")
        assert [trial["state"] for trial in found] == ["Complete", "Running", "Running"]
        assert found[0]["values"] == [3.0]

    def test_is_served_on_our_data(self, sample: SampleExperiment) -> None:
        with running([*TRIALPOD, "ui", "--optuna", str(sample.folder)]) as process:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().strip())
            status, headers, _ = ask(address.netloc, f"/?{address.query}")
            assert status == 303
            cookie = str(headers["set-cookie"]).partition(";")[0]
            found = trials(address.netloc, cookie)
            assert b"<html" in ask(address.netloc, "/dashboard", cookie)[2].lower()
        assert [trial["params"][0]["param_external_value"] for trial in found] == ["1", "2", "3"]
