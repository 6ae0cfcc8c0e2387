from __future__ import annotations

import ast
import asyncio
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import TrainableRef
from trialpod_operator.local import processes
from trialpod_operator.local.processes import ExitInfo, Process, ProcessPool

HERE = Path(__file__).parent
pytestmark = pytest.mark.local


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE), "GONE": "not yet"}


def new_pool(**options: object) -> ProcessPool:
    options.setdefault("env", environment())
    return ProcessPool(preloader="trial_stand_ins:preload", function="trial_stand_ins:run", **options)  # type: ignore[arg-type]


def with_pool(work: Callable[[ProcessPool], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        pool = new_pool(**options)
        await pool.start()
        try:
            await asyncio.wait_for(work(pool), 60)
        finally:
            await pool.close()

    asyncio.run(main())


def spawn(pool: ProcessPool, what: str, argument: str = "", **options: object) -> Process:
    key = str(options.pop("key", what))
    return pool.spawn(key, runner=what, address=argument, experiment="digits", **options)  # type: ignore[arg-type]


async def announced(pipe: Path) -> str:
    """Wait for what a trial writes into a named pipe."""
    return await asyncio.to_thread(pipe.read_text)


def new_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def assert_ends(pid: int, seconds: float = 20) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(seconds * 1000), f"process {pid} is still alive"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("what", "argument", "status"),
    [
        ("exit", "0", 0),
        ("exit", "3", 3),
        ("os._exit", "7", 7),
        ("sys.exit", "gave up", 1),
        ("raise", "bad luck", 1),
        ("segfault", "", -signal.SIGSEGV),
        ("fork", "", 0),
    ],
)
def test_however_a_trial_ends_its_status_is_reported(tmp_path: Path, what: str, argument: str, status: int) -> None:
    log = tmp_path / "log.txt"

    async def work(pool: ProcessPool) -> None:
        process = spawn(pool, what, argument, log_path=str(log))
        info = await process.exited
        assert (info.status, info.lost, info.problem) == (status, False, "")
        assert info.pid == process.pid > 0
        assert info.max_rss > 1_000_000
        assert_ends(info.pid)

    with_pool(work)
    assert argument in log.read_text() or what in ("exit", "os._exit")


def test_the_environment_of_a_trial_is_clean(tmp_path: Path) -> None:
    logs = [tmp_path / "0.txt", tmp_path / "1.txt"]

    async def work(pool: ProcessPool) -> None:
        assert (await pool.preload(TrainableRef(entrypoint="train:train"))).problem == ""
        for log in logs:
            process = spawn(
                pool,
                "facts",
                key=log.name,
                log_path=str(log),
                cwd=str(tmp_path),
                env={"CUDA_VISIBLE_DEVICES": "2", "GONE": None},
                python_path=["/some/folder"],
            )
            assert (await process.exited).status == 0
            facts = ast.literal_eval(log.read_text())
            assert facts["pid"] == facts["sid"] == process.pid
            assert facts["ppid"] == pool.fork_server_pid
            assert facts["preloaded"]
            assert facts["cwd"] == str(tmp_path)
            assert facts["path0"] == "/some/folder"
            assert facts["env"] == {"CUDA_VISIBLE_DEVICES": "2", "GONE": None}
            assert facts["stdin"] == ""
            assert facts["fds"] == ["/dev/null", str(log), str(log)]
            assert (facts["sigterm"], facts["sigint"], facts["blocked"]) == (True, True, 0)

    with_pool(work)
    numbers = {ast.literal_eval(log.read_text())["random"] for log in logs}
    assert len(numbers) == 2


def test_output_is_appended_and_flushed_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")

    async def work(pool: ProcessPool) -> None:
        await spawn(pool, "unflushed", log_path=str(log)).exited

    with_pool(work)
    assert log.read_text() == "before\ndigits without a newline"


def test_on_exit_is_called_and_signals_reach_the_trial(tmp_path: Path) -> None:
    seen: list[ExitInfo] = []

    async def work(pool: ProcessPool) -> None:
        process = spawn(pool, "wait", on_exit=seen.append)
        pool.terminate("wait")
        assert (await process.exited).status == -signal.SIGTERM
        assert str(seen[0]) == "killed by SIGTERM"
        pool.terminate("wait")  # It has ended: nothing happens.

    with_pool(work)
    assert [info.key for info in seen] == ["wait"]


def test_a_process_is_not_alive_before_its_exit_is_reported(tmp_path: Path) -> None:
    pipe = new_pipe(tmp_path)

    async def work(pool: ProcessPool) -> None:
        process = spawn(pool, "wait", str(pipe))
        pid = int(await announced(pipe))
        assert pool.is_alive("wait")
        watch = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([watch], [], [], 20)[0]  # the event loop is blocked here and knows nothing of it
        os.close(watch)
        assert not process.exited.done()
        assert not pool.is_alive("wait")
        await process.exited
        assert not pool.is_alive("wait")

    with_pool(work)


def test_an_error_in_on_exit_does_not_touch_the_other_trials() -> None:
    problems: list[object] = []

    def fail(info: ExitInfo) -> None:
        raise RuntimeError(info.key)

    async def work(pool: ProcessPool) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        waiting = spawn(pool, "wait")
        await spawn(pool, "exit", "0", on_exit=fail).exited
        pool.kill("wait")
        assert not (await waiting.exited).lost

    with_pool(work)
    assert len(problems) == 1


def test_kill_all_leaves_the_pool_usable() -> None:
    async def work(pool: ProcessPool) -> None:
        processes = [spawn(pool, "wait", key=str(index)) for index in range(5)]
        await pool.kill_all()
        assert [process.exited.result().status for process in processes] == [-signal.SIGKILL] * 5
        assert (await spawn(pool, "exit", "0").exited).status == 0

    with_pool(work)


def test_leftover_daemon_is_gone_before_exit_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"

    async def work(pool: ProcessPool) -> None:
        info = await spawn(pool, "daemon", log_path=str(log)).exited
        assert info.status == 0
        daemon = int(log.read_text().split()[0])  # killed while it wrote, it may say so behind that
        with pytest.raises(ProcessLookupError):
            os.kill(daemon, 0)

    with_pool(work)


def test_closing_the_pool_ends_everything_and_reports_it() -> None:
    async def main() -> None:
        pool = new_pool()
        await pool.start()
        server = pool.fork_server_pid
        process = spawn(pool, "wait")
        await pool.close()
        assert (await process.exited).status == -signal.SIGKILL
        assert_ends(server)
        late = spawn(pool, "exit", "0", key="late")
        assert (await late.exited).lost

    asyncio.run(main())


@pytest.mark.parametrize(
    ("signum", "how"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGTERM, "exit status 0")]
)
def test_ended_fork_server_loses_trials_and_is_replaced(tmp_path: Path, signum: int, how: str) -> None:
    pipe = new_pipe(tmp_path)

    async def work(pool: ProcessPool) -> None:
        assert (await pool.preload(TrainableRef(entrypoint="train:train"))).problem == ""
        process = spawn(pool, "wait", str(pipe))
        pid = int(await announced(pipe))
        first = pool.fork_server_pid
        os.kill(first, signum)
        info = await process.exited
        assert info.lost
        assert how in str(info)
        assert_ends(pid)
        again = tmp_path / "again.txt"
        assert (await spawn(pool, "facts", log_path=str(again)).exited).status == 0
        assert pool.fork_server_pid != first
        assert ast.literal_eval(again.read_text())["preloaded"]

    with_pool(work)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("thread", "metrics-uploader"),
        ("crash", "killed by SIGSEGV"),
        ("raise", "no module named 'trian'"),
        ("exit", "usage: train.py FILE"),
    ],
)
def test_a_module_that_cannot_be_preloaded_is_left_to_the_trials(what: str, why: str) -> None:
    async def work(pool: ProcessPool) -> None:
        preloaded = asyncio.ensure_future(pool.preload(TrainableRef(entrypoint=what)))
        await asyncio.sleep(0)
        early = spawn(pool, "exit", "0", key="early")  # waits in the socket while the import fails
        found = await preloaded
        assert why in found.problem
        assert found.unforkable == (what == "thread")
        assert (await early.exited).lost == (what == "crash")
        assert (await spawn(pool, "exit", "4").exited).status == 4

    with_pool(work)


def test_fork_server_that_cannot_start_is_an_error() -> None:
    async def main() -> None:
        pool = new_pool(env={"PYTHONHOME": "/nowhere"})
        with pytest.raises(TrialpodError, match="cannot start"):
            await pool.start()
        assert (await spawn(pool, "exit", "0").exited).lost
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("kills", [2, 5])
def test_fork_server_killed_at_start_is_restarted(kills: int) -> None:
    async def work(pool: ProcessPool) -> None:
        assert (await spawn(pool, "exit", "0", key="before").exited).status == 0
        for number in range(kills):
            pid = pool.fork_server_pid
            os.kill(pid, signal.SIGKILL)
            if number < 4:  # then it is given up for a while
                for _ in range(10_000):
                    if pool.fork_server_pid not in (pid, 0):
                        break
                    await asyncio.sleep(0.001)
        ends = [await spawn(pool, "exit", "0", key=f"after-{number}").exited for number in range(3)]
        assert [end.status for end in ends[1:]] == [0, 0]
        assert ends[0].lost or ends[0].status == 0

    with_pool(work)


def test_a_restart_that_fails_loses_trials_until_one_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = new_pipe(tmp_path)
    refusals = 3

    def refuse(**_options: object) -> None:
        nonlocal refusals
        refusals -= 1
        if not refusals:
            monkeypatch.undo()
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async def work(pool: ProcessPool) -> None:
        running = spawn(pool, "wait", str(pipe))
        await announced(pipe)
        monkeypatch.setattr(processes, "ForkServer", refuse)
        os.kill(pool.fork_server_pid, signal.SIGKILL)
        assert (await running.exited).lost
        ends = [await spawn(pool, "exit", "0", key=f"after-{number}").exited for number in range(4)]
        assert "Cannot allocate memory" in str(ends[0])
        assert [end.lost for end in ends][-2:] == [False, False]
        await pool.kill_all()

    with_pool(work)


def test_unopenable_log_ends_neither_trial_nor_fork_server(tmp_path: Path) -> None:
    async def work(pool: ProcessPool) -> None:
        assert (await spawn(pool, "exit", "5", log_path=str(tmp_path / "no" / "log")).exited).status == 5
        assert (await spawn(pool, "exit", "0").exited).status == 0

    with_pool(work)


PARENT = """
import asyncio, os, sys, fcntl
from test_processes import announced, new_pipe, new_pool, spawn
from pathlib import Path
from trialpod.protocol.messages import TrainableRef

async def main(folder, preload):
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pool = new_pool(keep_fd=lock)
    await pool.start()
    if preload:
        asyncio.ensure_future(pool.preload(TrainableRef(entrypoint=preload)))
        print(pool.fork_server_pid, flush=True)
    else:
        pipe = new_pipe(folder)
        process = spawn(pool, "daemon and wait", str(pipe), log_path=str(folder / "log.txt"))
        daemon = await announced(pipe)
        print(pool.fork_server_pid, process.pid, daemon, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


def start_parent(folder: Path, preload: str = "") -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder), preload],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, [int(word) for word in parent.stdout.readline().split()]


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_the_parent_and_the_lock_is_free_then(tmp_path: Path, fatal: signal.Signals) -> None:
    parent, pids = start_parent(tmp_path)
    with parent:
        assert len(pids) == 3  # the fork server, the trial, its daemon
        with open(tmp_path / "lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parent.send_signal(fatal)
        for pid in pids:
            assert_ends(pid)
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_fork_server_in_long_import_ends_with_its_parent(tmp_path: Path) -> None:
    parent, pids = start_parent(tmp_path, preload="forever")
    with parent:
        parent.kill()
        assert_ends(pids[0])


def test_the_lock_stays_taken_while_a_trial_lives(tmp_path: Path) -> None:
    async def work(pool: ProcessPool) -> None:
        spawn(pool, "wait", str(pipe))
        pid = int(await announced(pipe))
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert str(tmp_path / "lock") in held

    pipe = new_pipe(tmp_path)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with_pool(work, keep_fd=lock)
    finally:
        os.close(lock)
