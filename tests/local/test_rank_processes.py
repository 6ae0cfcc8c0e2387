"""Trials of several processes, for real: ranks that find each other by the environment, and speak through rank 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from report_server import ReportServer

from free_port import free_port
from trialpod.protocol.messages import Assignment, StopRule, TrainableRef

pytestmark = pytest.mark.local

SIZE = 3
STEPS = 8
SUM = """
    import os, socket, struct, time
    from trialpod import tune

    def train(config):
        context = tune.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0:
            server = socket.create_server(address)
            peers = [server.accept()[0] for _ in range(size - 1)]
        while rank:
            try:
                peers = [socket.create_connection(address)]
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        while True:
            time.sleep(0.05)
            for peer in peers if rank else ():
                peer.sendall(bytes([rank]))
            got = [peer.recv(1) for peer in peers]
            if not all(got):
                raise ConnectionResetError("a rank is gone")
            for peer in () if rank else peers:
                peer.sendall(b"x")
            print("rank", rank, "of", size, flush=True)
            tune.report({"sum": rank if rank else sum(each[0] for each in got)})
"""


class Group:
    """The processes of one attempt, each with a report service of its own to see what it says."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.servers: list[ReportServer] = []
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(SIZE):
            place = folder / str(rank)
            place.mkdir()
            self.servers.append(ReportServer(place, tcp=True))
            self._start(rank, place)

    def _start(self, rank: int, place: Path) -> None:
        server = self.servers[rank]
        server.assignments.append(
            Assignment(
                trial_id="t1",
                attempt=1,
                trial_name="train_t1",
                experiment="digits",
                experiment_tag="0",
                trial_dir=str(place / "work" / "train_t1"),
                params=msgspec.Raw(b"\x80"),
                trainable=TrainableRef(source=textwrap.dedent(SUM)),
                stop_rules=[StopRule("training_iteration", STEPS)],
                rank=rank,
                world_size=SIZE,
                master_addr="127.0.0.1",
            )
        )
        env = {
            **os.environ,
            "TRIALPOD_ADDRESS": server.address,
            "TRIALPOD_EXPERIMENT": "team/digits",
            "TRIALPOD_RUNNER": "t1/1",
            "TRIALPOD_SCRATCH_DIR": str(place / "work"),
            "TMPDIR": str(place / "work" / "tmp"),
            "MASTER_PORT": str(self.port),
            **({"TRIALPOD_RANK": str(rank)} if rank else {}),
        }
        command = [sys.executable, "-m", "trialpod.runner.pod"]
        pipe = subprocess.PIPE
        self.processes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True))

    def ends(self) -> list[tuple[int, str]]:
        """Wait for all processes; return their exit statuses and what they printed."""
        outputs = [process.communicate(timeout=60)[0] for process in self.processes]
        return [(process.returncode, output) for process, output in zip(self.processes, outputs, strict=True)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for server in made.servers:
        server.__exit__(None, None, None)


def assert_done(group: Group) -> None:
    for rank, (status, output) in enumerate(group.ends()):
        assert (status, output) == (0, f"rank {rank} of {SIZE}\n" * STEPS)
    head, *workers = group.servers
    assert [result["sum"] for result in head.results] == [3] * STEPS
    assert head.ends[0].cause == "completed"
    for rank, worker in enumerate(workers, 1):
        assert [request.rank for request in worker.asked] == [rank]
        assert worker.requests == []


def test_only_rank_0_reports(group: Group) -> None:
    assert_done(group)


def test_stopped_worker_stays_until_its_function_returns(group: Group) -> None:
    group.servers[0].wait(lambda: len(group.servers[0].results) >= 2)
    group.processes[1].send_signal(signal.SIGTERM)
    assert_done(group)


def test_a_worker_whose_peers_are_gone_fails_without_a_word(group: Group) -> None:
    group.servers[0].wait(lambda: len(group.servers[0].results) >= 2)
    group.processes[2].kill()
    (_, _), (status, output), _ = group.ends()
    assert status == 1
    assert "ConnectionResetError: a rank is gone" in output or "BrokenPipeError" in output
    assert group.servers[0].ends[0].cause == "failed"
    assert group.servers[1].requests == []
