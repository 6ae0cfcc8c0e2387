"""`trialpod ui` as a process of its own, beside an experiment that grows."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sample_experiment import SampleExperiment

pytestmark = [pytest.mark.local, pytest.mark.once]


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    return SampleExperiment(tmp_path / "e", [1, 2])


@pytest.fixture
def page(sample: SampleExperiment) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command, and its link."""
    code = "import sys; from trialpod.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "ui", str(sample.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def delta(stream: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the next delta of a stream of events."""
    for line in iter(stream.readline, b""):
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    raise AssertionError("the stream ended")


class TestPage:
    def test_follows_an_experiment_live(
        self, sample: SampleExperiment, page: tuple[subprocess.Popen[str], str]
    ) -> None:
        process, link = page
        address = urlsplit(link)
        assert address.hostname == "127.0.0.1"
        connection = http.client.HTTPConnection(address.netloc, timeout=60)
        with contextlib.closing(connection):
            self.follow(connection, sample, process, address.query)

    def follow(
        self,
        connection: http.client.HTTPConnection,
        sample: SampleExperiment,
        process: subprocess.Popen[str],
        query: str,
    ) -> None:
        connection.request("GET", f"/?{query}")
        opened = connection.getresponse()
        assert opened.status == 303
        opened.read()
        session = {"Cookie": str(opened.headers["set-cookie"]).partition(";")[0]}
        connection.request("GET", "/api/experiments/e/events", headers=session)
        stream = connection.getresponse()
        assert len(delta(stream)["trials"]) == 2
        sample.report(sample.trials[1], 4.0)
        change = delta(stream)
        assert [row["id"] for row in change["trials"]] == [sample.trials[1]]
        assert change["header"]["best"]["value"] == 4.0
        process.send_signal(signal.SIGINT)
        stream.close()
        assert process.wait(timeout=60) in (0, 130)
