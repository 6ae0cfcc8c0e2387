"""One round of chaos on this machine: real runs of one experiment, with the faults of a plan, until it ends.

Nothing here judges; it keeps what happened (`Round`) for `local_checks`. It waits for the progress that the trials'
witness files show, and does what the plan says then. A run that has ended is started again, as its user would.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_shell import TRIALPOD, Running, Shell
from local_plan import ALGORITHMS, FREQUENCY, STEPS, Fault, Plan
from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer

HERE = Path(__file__).parent
BOUND_S = 150.0
"""How long the experiment may take to end after the last fault, on a machine that does other things as well."""
PATIENCE_S = 12.0
"""Maximum time without progress; then a fault is done although its moment has not come."""
POLL_S = 0.01
DISK_BYTES = 24 * 1024 * 1024
ALWAYS_SAVED = ("pbt", "hyperband", "asha_promotion")
"""They pause trials at any result; functions save with each one there."""


_USERS = re.compile(r"users-.*|[a-z0-9_]{8}|\.trialpod-new-.*")
"""Temporary files of user code; the one by which `tempfile` finds out once whether it can write; and a folder that
was being made, which the next process to make one removes after a minute."""


@dataclass
class Done:
    """A fault that was done, in seconds of this machine's monotonic clock."""

    fault: Fault
    at: float
    pid: int
    until: float = 0.0


@dataclass
class Ended:
    """A run that ended: its exit status and what it said."""

    at: float
    status: int
    text: str
    errors: str


@dataclass
class Round:
    """What happened."""

    plan: Plan
    folder: Path
    began: float = 0.0
    over: float = 0.0
    done: list[Done] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)
    runs: list[Ended] = field(default_factory=list)
    told: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    """Events of the output of ``--json``, and when they were read."""
    problems: list[str] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """Processes that were still there some seconds after the last run had ended."""
    garbage: list[str] = field(default_factory=list)
    """Names in the folder for temporary files."""
    fsck: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What the witnesses wrote, in the order of time."""
    again: int = -1
    """Exit status of a further run of the finished experiment."""


class Witnesses:
    """Counts the results that the trials have reported so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self.count = 0

    def look(self) -> int:
        """Return how many there are already."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                before, size = self._read.get(entry.name, 0), entry.stat().st_size
                if size > before:
                    with open(entry.path, "rb") as file:
                        file.seek(before)
                        data = file.read(size - before)
                    whole = data.rfind(b"\n") + 1
                    self._read[entry.name] = before + whole
                    self.count += data[:whole].count(b'"number"')
        return self.count

    def facts(self) -> list[dict[str, Any]]:
        """Return all that was written, in the order of time."""
        lines = [line for path in self._folder.iterdir() for line in path.read_bytes().splitlines(keepends=True)]
        return sorted((json.loads(line) for line in lines if line.endswith(b"\n")), key=lambda fact: fact["at"])


class Chaos:
    """Runs a plan in a folder.

    Args:
        plan: what to do.
        folder: an empty one, for everything.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.round = Round(plan, folder)
        self.shell = Shell(folder)
        self.disk = folder / "disk"
        self.witnesses = Witnesses(folder / "witness")
        self.server: MinioServer | None = None
        self.running: Running | None = None
        self._to_end: list[tuple[float, Any]] = []  # (when, what ends a fault that lasts)
        self._mounted = False

    def run(self) -> Round:
        """Run it; what was started is gone afterwards, whatever happened."""
        try:
            self._prepare()
            self.round.began = time.monotonic()
            self._drive()
            self.round.over = time.monotonic()
            self._look()
        finally:
            for _, end in self._to_end:
                end()
            self.shell.cleanup()
            if self.server is not None:
                self.server.kill()
            if self._mounted:
                subprocess.run(["umount", "--lazy", str(self.disk)], check=False)
        return self.round

    # -- before --

    def _prepare(self) -> None:
        plan, shell = self.plan, self.shell
        for name in ("witness", "tmp", "home", "disk"):
            (shell.folder / name).mkdir()
        (shell.folder / "fault-plan.json").write_text(plan.text())
        spec = plan.spec()
        (shell.folder / "plan.json").write_text(json.dumps(spec))
        shutil.copy(HERE / "local_training.py", shell.folder / "train.py")
        shutil.copy(HERE / "local_script.py", shell.folder / "search.py")
        place = str(shell.folder / "trialpod-results")
        if plan.place == "disk":
            size = f"size={DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "trialpod-chaos", str(self.disk)], check=True)
            self._mounted = True
            place = str(self.disk / "results")
        elif plan.place == "bucket":
            self.server = MinioServer(shell.folder / "minio").start()
            place = "s3://chaos/here"
            self.server.storage(place)
            shell.env |= {
                "AWS_ENDPOINT_URL": self.server.endpoint,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            }
        self.place = f"{place}/exp"
        most = ALGORITHMS[plan.algorithm].get("stop", {}).get("training_iteration", STEPS)
        shell.env |= {
            "TMPDIR": str(shell.folder / "tmp"),
            "HOME": str(shell.folder / "home"),
            "WITNESS": str(shell.folder / "witness"),
            "STEP_S": str(plan.step_s),
            "FREQUENCY": str(FREQUENCY),
            "MOST_STEPS": str(most),
            "SAVES_ALWAYS": "1" if plan.algorithm in ALWAYS_SAVED else "0",
            "OMP_NUM_THREADS": "1",
            "PLACE": place,
        }
        shell.manifest(**spec)
        command = [*TRIALPOD, "run", "experiment.yaml", "--json", "--cpus", "4", "--storage", place]
        self.command = command if plan.driver == "manifest" else [sys.executable, "search.py"]

    # -- the run --

    def _drive(self) -> None:
        waiting = list(self.plan.faults)
        self._start()
        progressed = time.monotonic()
        count, due = 0, 0.0  # `due`: when the next fault's delay is over, 0 before its moment
        bound = time.monotonic() + BOUND_S
        while True:
            now = time.monotonic()
            self._end_what_is_over(now)
            if self.witnesses.look() > count:
                count, progressed = self.witnesses.count, now
            if waiting and not due and (count >= waiting[0].after or now > progressed + PATIENCE_S):
                due = now + waiting[0].delay_s
            if waiting and due and now >= due:
                self._do(waiting.pop(0))
                due, progressed, bound = 0.0, time.monotonic(), time.monotonic() + BOUND_S
            if self.running is None:
                self._start()
            elif self.running.process.poll() is not None and self._ended() and self._finished():
                self.round.missed += waiting
                return
            if now > bound:
                self.round.problems.append(f"it has not ended {BOUND_S:g} s after the last fault")
                return
            time.sleep(POLL_S)  # progress, and ends of processes, of three kinds at once

    def _start(self) -> None:
        self.running = self.shell.launch(self.command)
        self._told = 0

    def _ended(self) -> bool:
        """Note how the run ended; return whether the experiment may be finished by it."""
        running = self.running
        assert running is not None
        status = running.wait()
        now = time.monotonic()
        self._read_events(running, now)
        self.round.runs.append(Ended(now, status, "\n".join(running.lines), "\n".join(running.errors)))
        self.running = None
        if status == 0:
            return True
        if not self.plan.eager:
            self._wait_until_gone(60.0)
        elif status > 0:
            time.sleep(0.3)  # what refuses to start, with a full disk for example, is not started in a busy loop
        return False

    def _finished(self) -> bool:
        """Ask `trialpod results` whether the experiment is finished; a store that is down is waited for."""
        while self._to_end:
            self._end_what_is_over(time.monotonic())
            time.sleep(POLL_S)
        done = self.shell.run("results", self.place, "--json", timeout_s=60)
        if done.returncode != 0:
            self.round.problems.append(f"trialpod results: {done.stderr}")
            return True
        self.round.results = json.loads(done.stdout)
        return bool(self.round.results["state"] in ("Succeeded", "Failed", "Finished"))

    def _read_events(self, running: Running, now: float) -> None:
        if self.plan.driver != "manifest":
            return
        for line in running.lines[self._told :]:
            with contextlib.suppress(ValueError):
                self.round.told.append((now, json.loads(line)))
        self._told = len(running.lines)

    def _wait_until_gone(self, timeout_s: float) -> dict[int, str]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._end_what_is_over(time.monotonic())
            left = self.shell.processes()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(POLL_S)

    # -- the faults --

    def _do(self, fault: Fault) -> None:
        if self.running is not None:
            self._read_events(self.running, time.monotonic())
        what, _, target = fault.kind.partition(" ")
        if target == "disk":
            self._fill(fault)
        elif target == "minio":
            self._to_minio(fault, what)
        elif target == "machine":
            self._lose_machine(fault)
        else:
            self._to_process(fault, what, target)

    def _to_process(self, fault: Fault, what: str, target: str) -> None:
        pid = self._find(target, fault.choice)
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[what]
        if pid and self._signal(pid, number):
            done = Done(fault, time.monotonic(), pid)
            self.round.done.append(done)
            if what == "stop":
                done.until = done.at + fault.hold_s
                self._to_end.append((done.until, lambda: self._signal(pid, signal.SIGCONT)))
        else:
            self.round.missed.append(fault)

    @staticmethod
    def _signal(pid: int, number: int) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _find(self, target: str, choice: float) -> int:
        """Return the pid of the shell, the fork server or one of the trials; 0 when there is none."""
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline and self.running is not None:
            if target == "shell":
                return self.running.pid if self.running.process.poll() is None else 0
            servers = [
                pid for pid in _children(self.running.pid) if b"trialpod.runner.fork_server.server" in _command(pid)
            ]
            if servers and target == "fork server":
                return servers[0]
            trials = sorted(pid for server in servers for pid in _children(server))
            if trials:
                return trials[min(int(choice * len(trials)), len(trials) - 1)]
            if self.running.process.poll() is not None:
                return 0
            time.sleep(POLL_S)
        return 0

    def _to_minio(self, fault: Fault, what: str) -> None:
        server = self.server
        assert server is not None
        if server._process is None:
            self.round.missed.append(fault)
            return
        pid = server._process.pid
        done = Done(fault, time.monotonic(), pid)
        self.round.done.append(done)
        done.until = done.at + fault.hold_s
        if what == "stop":
            os.kill(pid, signal.SIGSTOP)
            self._to_end.append((done.until, lambda: self._signal(pid, signal.SIGCONT)))
        else:
            if what == "kill" or any(end for end in self._to_end):
                server.kill()  # one that is stopped ends by nothing else
            else:
                server.stop()
            self._to_end.append((done.until, server.start))

    def _fill(self, fault: Fault) -> None:
        ballast = self.disk / f"ballast-{len(self.round.done)}"
        done = Done(fault, time.monotonic(), 0)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        self.round.done.append(done)
        done.until = time.monotonic() + fault.hold_s
        self._to_end.append((done.until, lambda: ballast.unlink(missing_ok=True)))

    def _lose_machine(self, fault: Fault) -> None:
        for pid in self.shell.processes():
            self._signal(pid, signal.SIGKILL)
        if self._wait_until_gone(60.0):
            self.round.problems.append("processes outlive SIGKILL")
        done = Done(fault, time.monotonic(), 0)  # what a witness wrote before it is of the machine that was lost
        if self.running is not None:
            self._ended()
        for name in ("trialpod-results", "tmp", "home"):
            shutil.rmtree(self.shell.folder / name, ignore_errors=True)
        for name in ("tmp", "home"):
            (self.shell.folder / name).mkdir()
        self.round.done.append(done)

    def _end_what_is_over(self, now: float) -> None:
        over = [end for at, end in self._to_end if at <= now]
        self._to_end = [(at, end) for at, end in self._to_end if at > now]
        for end in over:
            end()

    # -- after --

    def _look(self) -> None:
        found, shell = self.round, self.shell
        found.left = self._wait_until_gone(60.0)
        if found.problems:
            return
        starts = sum("start" in fact for fact in self.witnesses.facts())
        again = shell.execute(self.command, timeout_s=110)
        found.again = again.returncode
        found.facts = self.witnesses.facts()
        if sum("start" in fact for fact in found.facts) != starts:
            found.problems.append("a further run of the finished experiment started trials")
        found.left |= self._wait_until_gone(60.0)
        found.garbage = sorted(name for name in os.listdir(shell.folder / "tmp") if not _USERS.fullmatch(name))
        checked = shell.run("fsck", self.place, "--verify", "--json", timeout_s=120)
        try:
            found.fsck = json.loads(checked.stdout)
        except ValueError:
            found.fsck = {}
        if checked.returncode != 0 or not found.fsck:
            found.problems.append(f"trialpod fsck --verify: {checked.stdout}{checked.stderr}")
        self._read_rows()

    def _read_rows(self) -> None:
        """Read every result.json, from where the experiment is kept."""
        if self.server is not None:
            storage = self.server.storage(self.place)
            keys = [key for key in storage.list() if key.endswith("/result.json")]
            files = {key.split("/")[0]: storage.read(key) for key in keys}
        else:
            files = {path.parent.name: path.read_bytes() for path in Path(self.place).glob("*/result.json")}
        for data in files.values():
            rows = [json.loads(line) for line in data.splitlines()]
            self.round.rows[rows[0]["trial_id"]] = rows


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
