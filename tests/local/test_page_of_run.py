"""The page beside `trialpod run --ui`, and its link in other commands."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from command_shell import Running, Shell

pytestmark = [pytest.mark.local, pytest.mark.once]

GATED = """
import os
from trialpod import tune

def train(config):
    tune.report({"score": config["x"]})
    with open(os.environ["GATE"]) as gate:  # a named pipe: waits until the test opens it
        gate.read()
"""


@pytest.fixture
def gate(shell: Shell) -> Path:
    """What the one trial waits for, after its first result."""
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    shell.env["GATE"] = str(gate)
    shell.write("train.py", GATED)
    shell.manifest(metric="score", mode="max", numSamples=1)
    return gate


def link_of(running: Running) -> str:
    return running.wait_line("page: http://127.0.0.1:").removeprefix("page: ")


def header(link: str) -> dict[str, Any]:
    """Open a session by the link, and return what the page's header shows."""
    address = urlsplit(link)
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=30)) as connection:
        connection.request("GET", f"/?{address.query}")
        opened = connection.getresponse()
        assert opened.status == 303
        opened.read()
        session = {"Cookie": str(opened.headers["set-cookie"]).partition(";")[0]}
        connection.request("GET", f"/api/experiments/{address.fragment.removeprefix('/e/')}", headers=session)
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


class TestPageOfRun:
    def test_shows_the_run_and_ends_with_it(self, shell: Shell, gate: Path) -> None:
        running = shell.start("run", "experiment.yaml", "--ui")
        link = link_of(running)
        assert urlsplit(link).fragment == "/e/exp"
        running.wait_line("results:")
        assert header(link)["name"] == "exp"
        gate.write_text("")
        assert running.wait() == 0
        shell.wait_until_all_gone()

    def test_ends_when_the_run_is_killed(self, shell: Shell, gate: Path) -> None:
        running = shell.start("run", "experiment.yaml", "--ui")
        link_of(running)
        running.signal(signal.SIGKILL)
        running.wait()
        shell.wait_until_all_gone()

    def test_stays_in_a_terminal_until_interrupted(self, shell: Shell, gate: Path) -> None:
        gate.unlink()
        gate.write_text("")
        terminal, inner = pty.openpty()
        running = shell.launch(
            ["sh", "-c", 'trialpod run experiment.yaml --ui <"$0" >"$0" & pid=$!; echo $pid; wait $pid; echo "$?"',
             os.ttyname(inner)],
        )  # fmt: skip
        pid = int(running.wait_line(str.isdecimal))
        said = b""
        while b"stays open until Ctrl-C" not in said or b"page: " not in said.partition(b"stays open")[2]:
            said += os.read(terminal, 4096)
        link = said.partition(b"stays open")[2].partition(b"page: ")[2].split()[0].decode()
        assert header(link)["state"] == "Succeeded"
        os.kill(pid, signal.SIGINT)
        running.wait_line(lambda line: line == "0")
        os.close(inner)
        os.close(terminal)
        shell.wait_until_all_gone()


class TestLinkOfPage:
    def test_is_printed_by_run_and_status(self, shell: Shell, gate: Path) -> None:
        (shell.folder / "trialpod-results").mkdir()
        page = shell.start("ui")
        page.wait_line("http://127.0.0.1:")
        running = shell.start("run", "experiment.yaml")
        link = link_of(running)
        running.wait_line("results:")
        watching = shell.start("status", "exp", "--watch")
        assert link_of(watching) == link
        assert header(link)["name"] == "exp"
        gate.write_text("")
        assert (running.wait(), watching.wait()) == (0, 0)
        page.signal(signal.SIGINT)
        page.wait()
        again = shell.run("run", "experiment.yaml")
        assert "page:" not in again.stdout
