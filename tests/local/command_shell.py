"""Real `trialpod` commands in a folder of their own, and the guarantee that nothing of them outlives a test.

Every process of a test carries a mark in its environment, which children inherit: it is found and killed by its pid,
also after its parent has changed. Waits are for output lines and for the end of processes, never for time alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_commands import WarmCommands

MARK = "TRIALPOD_TEST_MARK"
TIMEOUT_S = 100.0
TRIALPOD = [str(Path(sys.executable).with_name("trialpod"))]
WARM = WarmCommands()


class Running:
    """A command that runs; its output can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._unread: queue.Queue[str | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._read, args=(stream, kept, into), daemon=True)
            for stream, kept, into in (
                (process.stdout, self.lines, self._unread),
                (process.stderr, self.errors, None),
            )
            if stream is not None
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, kept: list[str], into: queue.Queue[str | None] | None) -> None:
        for line in stream:
            kept.append(line.rstrip("\n"))
            if into is not None:
                into.put(kept[-1])
        if into is not None:
            into.put(None)

    def wait_line(self, matches: str | Callable[[str], bool], timeout_s: float = TIMEOUT_S) -> str:
        """Return the next unread line of stdout that contains a text or meets a condition."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"no line {matches!r} came in {timeout_s} s; there were:\n{self.text}")
            if line is None:
                pytest.fail(f"the command ended without a line {matches!r}; there were:\n{self.text}")
            if matches in line if isinstance(matches, str) else matches(line):
                return line

    def wait_event(self, kind: str, matches: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Return the next unread event of a kind from the output of `--json`."""
        found: list[dict[str, Any]] = []

        def wanted(line: str) -> bool:
            event = json.loads(line)
            found.append(event)
            return event["event"] == kind and matches(event)

        self.wait_line(wanted)
        return found[-1]

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Return the exit status, once the command has ended and all its output is here."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the command is still running after {timeout_s} s; it has said:\n{self.text}")
        for thread in self._threads:
            thread.join(timeout_s)
        return status

    def signal(self, signum: int) -> None:
        """Send a signal to the command itself."""
        self.process.send_signal(signum)

    @property
    def text(self) -> str:
        """Everything that was said so far, errors last."""
        return "\n".join([*self.lines, *self.errors])


class Shell:
    """A folder, the files that a user would have in it, and the `trialpod` commands run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TRIALPOD_")},
            MARK: self.mark,
            "TERM": "dumb",
            "PATH": f"{Path(TRIALPOD[0]).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(folder),  # where scripts keep their results
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
        }
        self._running: list[Running] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def manifest(self, name: str = "exp", *, file: str = "experiment.yaml", **spec: Any) -> Path:
        """Write a manifest: a trainable `train:train` and what `spec` adds."""
        fields = {"trainable": {"entrypoint": "train:train"}, "searchSpace": {"x": {"uniform": [0, 1]}}, **spec}
        document = {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": name},
            "spec": {key: value for key, value in fields.items() if value is not None},
        }
        return self.write(file, json.dumps(document, indent=1))

    def run(
        self, *args: str, stdin: str | None = None, timeout_s: float = TIMEOUT_S, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `trialpod ARGS` to its end."""
        if not options:
            return WARM.run([*TRIALPOD, *args], cwd=self.folder, env=self.env, stdin=stdin, timeout_s=timeout_s)
        return self.execute([*TRIALPOD, *args], stdin=stdin, timeout_s=timeout_s, **options)

    def python(self, *args: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end."""
        if args[0] == "-m" or args[0].endswith(".py"):
            return WARM.run(args, cwd=self.folder, env=self.env, stdin=None, timeout_s=timeout_s)
        return self.execute([sys.executable, *args], timeout_s=timeout_s)

    def execute(
        self, command: list[str], *, stdin: str | None = None, timeout_s: float = TIMEOUT_S, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run any command in the folder to its end."""
        options = {"cwd": self.folder, "env": self.env, **options}
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, **source, **options
        )

    def start(self, *args: str, **options: Any) -> Running:
        """Start `trialpod ARGS` and return at once."""
        return self.launch([*TRIALPOD, *args], **options)

    def launch(self, command: list[str], **options: Any) -> Running:
        """Start any command in the folder, in a process group of its own, as a terminal's shell would."""
        options = {"cwd": self.folder, "env": self.env, "process_group": 0, "stdout": subprocess.PIPE, **options}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            **options,
        )
        running = Running(process)
        self._running.append(running)
        return running

    def results(self, directory: str | Path = "trialpod-results/exp") -> dict[str, Any]:
        """Return what `trialpod results --json` says."""
        done = self.run("results", str(self.folder / directory), "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def assert_whole(self, place: str | Path = "trialpod-results/exp") -> None:
        """Assert that `trialpod fsck --verify` finds nothing wrong with an experiment."""
        where = str(place) if "://" in str(place) else str(self.folder / place)
        done = self.run("fsck", where, "--verify")
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self) -> dict[int, str]:
        """Return the living processes of this test, of any parent: pid and command line."""
        wanted = f"{MARK}={self.mark}".encode()
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                        words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                        found[int(entry)] = b" ".join(words).decode(errors="replace")
        return found

    def wait_until_all_gone(self, timeout_s: float = 60.0) -> None:
        """Return when no process of this test is left; fail if one stays."""
        deadline = time.monotonic() + timeout_s
        while left := self.processes():
            if time.monotonic() > deadline:
                pytest.fail(f"these processes are still there: {left}")
            for pid in left:
                wait_gone(pid, max(0.0, deadline - time.monotonic()))

    def cleanup(self) -> None:
        """Kill what is left, by its pid."""
        for _ in range(20):
            left = self.processes()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                wait_gone(pid, 5.0)
        for running in self._running:
            running.wait()
            for stream in (running.process.stdout, running.process.stderr):
                if stream is not None:
                    stream.close()


def wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait for the end of any process; return whether it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a result.json; [] when there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of an output of `--json`."""
    return [json.loads(line) for line in text.splitlines()]
