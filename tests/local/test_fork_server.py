from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from test_processes import assert_ends

from trialpod.protocol.messages import TrainableRef
from trialpod.runner.fork_server.protocol import (
    Command,
    Event,
    EventStream,
    Exited,
    Kill,
    Preload,
    Preloaded,
    Ready,
    Signal,
    Spawn,
    Started,
    frame,
)

HERE = Path(__file__).parent
pytestmark = pytest.mark.local


class Server:
    def __init__(self, *, code: str | None = None) -> None:
        program = ["-m", "trialpod.runner.fork_server.server"] if code is None else ["-c", code]
        self.control, theirs = socket.socketpair()
        self.control.settimeout(30)
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    *program,
                    str(theirs.fileno()),
                    *("--parent", str(os.getpid())),
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(HERE)},
            )
        self._events = EventStream()
        self._waiting: list[Event] = []

    def send(self, *commands: Command) -> None:
        self.control.sendall(b"".join(map(frame, commands)))

    def next(self) -> Event | None:
        while not self._waiting:
            try:
                data = self.control.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._waiting += self._events.feed(data)
        return self._waiting.pop(0)

    def until_exits(self, count: int) -> list[Event]:
        events: list[Event] = []
        while sum(isinstance(event, Exited) for event in events) < count:
            event = self.next()
            assert event is not None
            events.append(event)
        return events


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.control.close()
        server.process.wait(30)


def trial(what: str, argument: str = "", key: str = "t") -> Spawn:
    return Spawn(key=key, runner=what, address=argument, experiment="e", function="trial_stand_ins:run")


def preload(what: str) -> Preload:
    return Preload(
        ref=TrainableRef(entrypoint=what), preloader="trial_stand_ins:preload", function="trial_stand_ins:run"
    )


def test_it_says_when_it_is_ready_and_answers_in_order(server: Server) -> None:
    server.send(preload("train"), trial("exit", "5"))
    ready, preloaded, started, exited = (server.next() for _ in range(4))
    assert ready == Ready(pid=server.process.pid)
    assert preloaded == Preloaded(problem="")
    assert isinstance(started, Started)
    assert isinstance(exited, Exited)
    assert (exited.key, exited.status) == ("t", 5)


def test_it_leads_its_own_process_group_and_survives_ctrl_c(server: Server) -> None:
    assert isinstance(server.next(), Ready)
    assert os.getpgid(server.process.pid) == server.process.pid
    server.process.send_signal(signal.SIGINT)
    server.send(trial("exit", "0"))
    assert isinstance(server.until_exits(1)[-1], Exited)


def test_server_exits_silently_when_its_parent_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    server = Server()
    server.control.close()
    assert server.process.wait(30) == 0
    assert capfd.readouterr().err == ""


def test_commands_sent_before_it_replaces_itself_are_not_lost(server: Server) -> None:
    trials = [trial("exit", str(index), key=str(index)) for index in range(20)]
    server.send(preload("thread"), *trials)
    events = server.until_exits(20)
    assert isinstance(events[1], Preloaded)
    assert "started threads (metrics-uploader)" in events[1].problem
    exits = {event.key: event.status for event in events if isinstance(event, Exited)}
    assert exits == {str(index): index for index in range(20)}


def test_a_preload_while_trials_run_is_refused(server: Server) -> None:
    server.send(trial("wait"), preload("train"), Kill(key="t"))
    events = server.until_exits(1)
    assert Preloaded(problem="trials are running already") in events


def test_commands_for_a_trial_that_has_ended_are_ignored(server: Server) -> None:
    server.send(trial("exit", "0"))
    server.until_exits(1)
    server.send(Kill(key="t"), Signal(key="t", signum=signal.SIGTERM), trial("exit", "1", key="u"))
    exited = server.until_exits(1)[-1]
    assert isinstance(exited, Exited)
    assert (exited.key, exited.status) == ("u", 1)


def test_trial_with_unopenable_log_runs_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    server = Server()
    server.send(msgspec.structs.replace(trial("exit", "5"), log_path="/nowhere/log.txt"))
    exited = server.until_exits(1)[-1]
    server.control.close()
    assert server.process.wait(30) == 0
    assert isinstance(exited, Exited)
    assert exited.status == 5
    assert "cannot open /nowhere/log.txt: No such file or directory" in capfd.readouterr().err


def test_a_trial_told_to_end_right_after_its_start_ends(server: Server) -> None:
    for index in range(20):
        key = str(index)
        server.send(trial("wait", key=key), Signal(key=key, signum=signal.SIGTERM))
    statuses = {event.status for event in server.until_exits(20) if isinstance(event, Exited)}
    assert statuses == {-signal.SIGTERM}


@pytest.mark.parametrize("how", ["end of the socket", "SIGTERM", "SIGKILL"])
def test_trials_do_not_outlive_it(server: Server, how: str) -> None:
    server.send(trial("wait"))
    assert isinstance(server.next(), Ready)
    started = server.next()
    assert isinstance(started, Started)
    descriptor = os.pidfd_open(started.pid)
    if how == "end of the socket":
        server.control.shutdown(socket.SHUT_WR)
    else:
        server.process.send_signal(getattr(signal, how))
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(20_000)
    os.close(descriptor)
    if how == "end of the socket":  # else it is not the trial that ended: it was lost
        exited = server.next()
        assert isinstance(exited, Exited)
        assert exited.status == -signal.SIGKILL
    assert server.next() is None
    server.process.wait(20)


PARENT = """
import os, subprocess, sys
control, code = sys.argv[1:]
command = [sys.executable, "-c", code, control, "--parent", str(os.getpid())]
server = subprocess.Popen(command, pass_fds=[int(control)])
print(server.pid, flush=True)
server.wait()
"""

PARENT_ENDS = """
import os, select, signal
from trialpod.runner.fork_server import server, system

def end_parent():
    parent = os.getppid()
    ended = select.poll()
    ended.register(os.pidfd_open(parent), select.POLLIN)
    os.kill(parent, signal.SIGKILL)
    ended.poll()
"""

BEFORE_THE_SERVER_LOOKS = """
end_parent()
server.main()
"""

BEFORE_THE_KERNEL_IS_ASKED = """
ask = system.die_with_parent

def late(parent):
    end_parent()
    return ask(parent)

system.die_with_parent = late
server.main()
"""


@pytest.mark.parametrize("when", [BEFORE_THE_SERVER_LOOKS, BEFORE_THE_KERNEL_IS_ASKED], ids=["start", "import"])
def test_it_ends_also_when_its_parent_ended_just_before(when: str) -> None:
    control, theirs = socket.socketpair()
    control.sendall(frame(preload("forever")))
    with control, theirs:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(theirs.fileno()), PARENT_ENDS + when],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        with parent:
            assert parent.stdout is not None
            server = int(parent.stdout.readline())
        try:
            assert_ends(server)
        except AssertionError:
            os.kill(server, signal.SIGKILL)
            raise


WITH_A_DAEMON = """
import os
from trialpod.runner.fork_server import server

def kill_others(pid, number):
    with open(f"/proc/{{pid}}/cmdline", "rb") as file:
        if file.read().endswith(b"signal.pause()\\0"):
            {for_the_daemon}
    kill(pid, number)

kill, os.kill = os.kill, kill_others
server._LEFTOVER_WAIT_S, server._END_WAIT_S = {wait_s}, 0.1
server.main()
"""


def test_a_process_of_another_user_is_left(tmp_path: Path) -> None:
    """Neither do exits wait for it, nor does the server when its parent is gone."""
    refuse = 'raise PermissionError(1, "Operation not permitted")'
    server = Server(code=WITH_A_DAEMON.format(for_the_daemon=refuse, wait_s=1000))
    log = tmp_path / "log.txt"
    server.send(msgspec.structs.replace(trial("daemon"), log_path=str(log)))
    try:
        assert isinstance(server.until_exits(1)[-1], Exited)
        server.send(trial("exit", "3", key="u"))
        exited = server.until_exits(1)[-1]
        assert isinstance(exited, Exited)
        assert exited.status == 3
        server.control.close()
        assert server.process.wait(30) == 0
        assert os.getsid(int(log.read_text())) == int(log.read_text()), "it is still there"
    finally:
        server.control.close()
        server.process.kill()
        server.process.wait()
        os.kill(int(log.read_text()), signal.SIGKILL)


def test_exits_are_reported_beside_a_process_that_hangs(tmp_path: Path) -> None:
    """Each waits for it as long as the first, however many end meanwhile."""
    server = Server(code=WITH_A_DAEMON.format(for_the_daemon="return", wait_s=0.5))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    server.send(trial("daemon and wait", str(pipe)))
    daemon = int(pipe.read_text())
    try:
        assert isinstance(server.next(), Ready)
        started = server.next()
        assert isinstance(started, Started)
        os.kill(started.pid, signal.SIGKILL)
        assert_ends(started.pid)
        deadline = time.monotonic() + 20
        for number in itertools.count():
            assert time.monotonic() < deadline
            server.send(trial("exit", "0", key=str(number)))
            event = server.next()
            assert event is not None
            if isinstance(event, Exited):
                break
        assert isinstance(event, Exited)
        assert event.key == "t"
    finally:
        server.control.close()
        server.process.kill()
        server.process.wait()
        os.kill(daemon, signal.SIGKILL)
