"""A command's process, output, files and folder, with real processes and a real HTTP server."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trialpod.cli.report import main as report
from trialpod.errors import TrainableError
from trialpod.protocol.command import CheckpointFolderSpec, MetricsSpec
from trialpod.runner.command.checkpoint_folder import MAX_WAIT, CheckpointFolder
from trialpod.runner.command.output import MAX_QUEUED_LINES, CommandOutput
from trialpod.runner.command.process import CommandNotFoundError, CommandProcess, describe_status
from trialpod.runner.command.report_server import CheckpointRequest, ReportServer
from trialpod.runner.command.sources import (
    GrowingFile,
    MlflowSource,
    PrometheusSource,
    TensorBoardSource,
    open_sources,
    parse_text,
)
from trialpod.tune.command.metrics.reader import LineReader

ENV = {"PATH": os.environ["PATH"]}


def started(*arguments: str, cwd: Path) -> CommandProcess:
    return CommandProcess(arguments, ENV, str(cwd))


@contextlib.contextmanager
def unread(*arguments: str, cwd: Path) -> Iterator[CommandProcess]:
    process = started(*arguments, cwd=cwd)
    yield process
    process.close()
    for stream in process.streams:
        stream.close()


def lines_of(*arguments: str, cwd: Path, reader: LineReader | None = None) -> tuple[list[str], list[str]]:
    """Run a program to its end; return the lines with a metric, and what had no end."""
    process = started(*arguments, cwd=cwd)
    output = CommandOutput(process.streams, reader or LineReader(MetricsSpec()))
    found = []
    try:
        while True:
            ended = output.ended
            if (line := output.next(0.01)) is not None:
                found.append(line)
            elif ended:
                break
    finally:
        process.close()
        output.stop()
    return found, output.partials


class TestProcess:
    def test_exit_status_and_signal(self, tmp_path):
        with unread("sh", "-c", "exit 3", cwd=tmp_path) as process:
            assert process.wait(60) == 3
        with unread("sh", "-c", "kill -SEGV $$", cwd=tmp_path) as process:
            assert process.wait(60) == -signal.SIGSEGV
        assert describe_status(-11) == "was killed by SIGSEGV"
        assert describe_status(3) == "exited with status 3"

    def test_end_signals_the_whole_group(self, tmp_path):
        script = (
            'trap "echo done >ended; exit 0" TERM; '
            '(trap "echo done >inner; exit 0" TERM; echo >ready; while :; do sleep 0.02; done) & wait; wait'
        )
        with unread("sh", "-c", script, cwd=tmp_path) as process:
            wait_for(lambda: (tmp_path / "ready").exists())
            process.end(60)
            wait_for(lambda: (tmp_path / "inner").exists())

    def test_end_kills_what_ignores_sigterm(self, tmp_path):
        with unread("sh", "-c", 'trap "" TERM; echo >ready; while :; do sleep 0.02; done', cwd=tmp_path) as process:
            wait_for(lambda: (tmp_path / "ready").exists())
            assert process.end(0.1) == -signal.SIGKILL

    @pytest.mark.parametrize("moment", ["later", "at once"])
    def test_the_program_dies_with_its_runner(self, tmp_path, moment):
        """At once is before the call that starts the program has returned."""
        code = (
            "import os, signal, subprocess, sys\nfrom trialpod.runner.command import process\n"
            "started = subprocess.Popen._execute_child\n"
            "def execute(self, args, *rest):\n"
            "    started(self, args, *rest)\n"
            "    if args[0] == 'sh':\n"
            "        print(self.pid, flush=True)\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "if sys.argv[1] == 'at once':\n"
            "    subprocess.Popen._execute_child = execute\n"
            "made = process.CommandProcess(['sh', '-c', 'sleep 1000 & sleep 1000'], dict(os.environ), '.')\n"
            "print(made.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, moment], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        group = int(done.stdout)

        def gone() -> bool:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            return all_zombies(group)

        wait_for(gone)

    def test_a_program_that_cannot_start_leaves_no_guard(self, tmp_path):
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        before = children.read_text()  # other tests of this process may have one that stays
        with pytest.raises(CommandNotFoundError):
            started("./nothing", cwd=tmp_path)
        assert children.read_text() == before

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("pyhton3", "there is no program 'pyhton3'; did you mean 'python3'"),
            ("./nothing", "the program ./nothing does not exist, seen from .*in a cluster it has to be in the image"),
            ("./lokced", "seen from .*; did you mean './locked'"),
            ("./locked", "may not be executed: chmod"),
            ("./headless", "has no #! line"),
            ("./lost", "names an interpreter that does not exist .*: correct that line"),
        ],
    )
    def test_a_program_that_cannot_start(self, tmp_path, program, message):
        (tmp_path / "locked").write_text("#!/bin/sh\n")
        (tmp_path / "headless").write_text("echo\n")
        (tmp_path / "lost").write_text("#!/nowhere/sh\n")
        for name in ("headless", "lost"):
            (tmp_path / name).chmod(0o755)
        with pytest.raises(CommandNotFoundError, match=message):
            started(program, cwd=tmp_path)

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_start_that_may_succeed_later_is_not_final(self, tmp_path, monkeypatch, which):
        """First the guard is started, then the program."""
        start, calls = subprocess.Popen, iter(range(9))

        def busy(*arguments, **options):
            if next(calls) == which:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return start(*arguments, **options)

        monkeypatch.setattr(subprocess, "Popen", busy)
        with pytest.raises(TrainableError, match="cannot be started: Resource temporarily unavailable") as raised:
            started("true", cwd=tmp_path)
        assert raised.type is TrainableError

    def test_arguments_that_are_too_long(self, tmp_path):
        with pytest.raises(CommandNotFoundError, match="cannot be started: Argument list too long"):
            started("true", "x" * 10_000_000, cwd=tmp_path)

    def test_a_missing_working_directory(self, tmp_path):
        with pytest.raises(CommandNotFoundError, match=r"working directory .* does not exist"):
            started("true", cwd=tmp_path / "none")


def all_zombies(group: int) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                return False
    return True


def wait_for(condition, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


class TestOutput:
    def test_both_streams_and_a_last_line_without_end(self, tmp_path, capfd):
        script = "echo a=1; echo b=2 >&2; echo nothing; printf c=3"
        lines, partials = lines_of("sh", "-c", script, cwd=tmp_path)
        assert sorted(lines) == ["a=1", "b=2"]
        assert partials == ["c=3"]
        shown = capfd.readouterr()
        assert shown.out == "a=1\nnothing\nc=3"
        assert shown.err == "b=2\n"

    def test_more_lines_than_the_queue_holds(self, tmp_path):
        lines, partials = lines_of("sh", "-c", "seq 0 8999 | sed s/^/i=/; printf i=9000", cwd=tmp_path)
        assert lines == [f"i={i}" for i in range(9000)]
        assert partials == ["i=9000"]

    def test_the_end_keeps_a_full_queue(self, tmp_path):
        script = f"seq {MAX_QUEUED_LINES} | sed s/^/i=/; printf last=1"
        process = started("sh", "-c", script, cwd=tmp_path)
        output = CommandOutput(process.streams, LineReader(MetricsSpec()))
        wait_for(lambda: output.ended)
        process.close()
        output.stop()
        assert not output.idle
        lines = []
        while (line := output.next(0)) is not None:
            lines.append(line)
        assert output.idle
        assert len(lines) == MAX_QUEUED_LINES
        assert output.partials == ["last=1"]

    def test_stop_takes_what_there_is_and_waits_for_nobody(self, tmp_path):
        script = "setsid sh -c 'echo $$ >pid; sleep 1000' & while ! [ -s pid ]; do :; done; echo a=1; printf b=2"
        process = started("sh", "-c", script, cwd=tmp_path)
        assert process.wait(60) == 0
        process.close()
        output = CommandOutput(process.streams, LineReader(MetricsSpec()))
        output.stop()
        try:
            wait_for(lambda: output.ended)
            assert output.next(0) == "a=1"
            assert output.partials == ["b=2"]
        finally:
            os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    def test_idle_says_whether_all_lines_were_taken(self, tmp_path):
        with contextlib.ExitStack() as stack:
            process = started("sh", "-c", "echo a=1; echo b=2; echo >ready; sleep 1000", cwd=tmp_path)
            stack.callback(process.close)
            output = CommandOutput(process.streams, LineReader(MetricsSpec()))
            stack.callback(output.stop)
            wait_for(lambda: (tmp_path / "ready").exists())
            assert not output.idle
            lines = []
            while not output.idle:
                if (line := output.next(0)) is not None:
                    lines.append(line)
            assert lines == ["a=1", "b=2"]

    def test_a_line_without_end_needs_little_memory(self, tmp_path):
        reader = LineReader(MetricsSpec())
        _, (line,) = lines_of("sh", "-c", "printf loss=1; head -c 5000000 /dev/zero | tr '\\0' x", cwd=tmp_path)
        assert len(line) == 64 * 1024
        assert reader.read("loss=1") == {"loss": 1}


class TestReports:
    def test_every_form(self, monkeypatch, capsys):
        server = ReportServer()
        try:
            monkeypatch.setenv("TRIALPOD_REPORT_URL", server.url)
            assert report(["loss=0.3", "acc=1e-1", "step=4"]) == 0
            assert server.next() == ({"loss": 0.3, "acc": 0.1}, 4)
            urllib.request.urlopen(server.url, data=b'{"loss": 0.5, "val": {"acc": 1}}').close()
            assert server.next() == ({"loss": 0.5, "val/acc": 1}, None)
            assert server.checkpoint_requests() == []
            assert report(["loss"]) == 2
            assert "'loss' is not a metric; write name=number" in capsys.readouterr().err
            assert report(["step=4"]) == 2
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                urllib.request.urlopen(server.url[:-1], data=b"loss=1")
            refused.value.close()
            assert server.next() is None
        finally:
            server.close()
        assert report(["loss=1"]) == 1

    @pytest.mark.parametrize(("taken", "status"), [(True, 0), (False, 1)])
    def test_a_checkpoint_is_waited_for(self, monkeypatch, taken, status):
        server = ReportServer()
        monkeypatch.setenv("TRIALPOD_REPORT_URL", server.url)
        with ThreadPoolExecutor(1) as calls:
            try:
                call = calls.submit(report, ["--checkpoint"])
                requests: list[CheckpointRequest] = []
                wait_for(lambda: requests.extend(server.checkpoint_requests()) or requests)
                assert not call.done()
                requests[0].answer(taken=taken)
                assert call.result(60) == status
                server.release()
                assert calls.submit(report, ["--checkpoint"]).result(60) == 0
            finally:
                server.close()

    def test_close_waits_for_nothing(self):
        for _ in range(20):
            server = ReportServer()
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", int(urlsplit(server.url).port or 0))),
            ):
                server.close()
            wait_for(lambda: "trialpod-reports" not in [thread.name for thread in threading.enumerate()])

    def test_outside_a_trial_it_only_prints(self, monkeypatch, capsys):
        monkeypatch.delenv("TRIALPOD_REPORT_URL", raising=False)
        assert report(["loss=0.3", "step=4"]) == 0
        assert capsys.readouterr().out == "loss=0.3 step=4\n"
        assert report([]) == 2
        assert report(["--help"]) == 0


class TestFiles:
    def test_whole_lines_once(self, tmp_path):
        path = tmp_path / "log"
        path.write_text("a=0\n")
        file = GrowingFile(str(path), parse_text, skip=True)
        with path.open("a") as out:
            for text, expected in [("a=1\na", ["a=1"]), ("=2\n", ["a=2"]), ("", []), ("a=3", [])]:
                out.write(text)
                out.flush()
                assert list(file.lines(last=False)) == expected
        assert list(file.lines(last=True)) == ["a=3"]

    def test_a_file_that_is_rewritten_with_old_lines_in_front(self, tmp_path):
        path = tmp_path / "hypertune.jsonl"
        (source,) = open_sources(MetricsSpec(file=str(path)), ())
        lines: list[str] = []
        found = []
        for step in range(12):
            lines = [*lines, json.dumps({"loss": "0.5", "global_step": step})][-5:]
            path.write_text("".join(f"{line}\n" for line in lines))
            found += [values["global_step"] for values, _ in source.poll(0.0)]
        assert found == list(range(12))

    def test_a_file_that_is_caught_while_it_is_rewritten(self, tmp_path):
        path = tmp_path / "log"
        file = GrowingFile(str(path), parse_text, skip=True)
        for text, expected in [
            ("a\nb\n", ["a", "b"]), ("", []), ("a\nb\nc\n", ["c"]), ("a\n", []), ("a\nb", []),
            ("a\nb\nc\nd\n", ["d"]), ("b\n", []), ("b\nc\nd\ne\n", ["e"]),
        ]:  # fmt: skip
            path.write_text(text)
            assert list(file.lines(last=False)) == expected

    def test_long_lines_of_a_rewritten_file_are_known_again(self, tmp_path):
        path = tmp_path / "log"
        file = GrowingFile(str(path), parse_text, skip=True)
        first, second, third = (f"{number} {'x' * 300}" for number in range(3))
        for lines, expected in [([first, second], [first, second]), ([second, third], [third])]:
            path.write_text("".join(f"{line}\n" for line in lines))
            assert list(file.lines(last=False)) == expected

    def test_the_changed_end_of_a_long_file_is_read_alone(self, tmp_path):
        path = tmp_path / "log"
        file = GrowingFile(str(path), parse_text, skip=True)
        lines = [str(number) for number in range(1500)]
        for wanted, expected in [
            (lines, lines), (lines[:700], []), ([*lines[:-1], "x", "y"], ["x", "y"]),
        ]:  # fmt: skip
            path.write_text("".join(f"{line}\n" for line in wanted))
            assert list(file.lines(last=False)) == expected

    def test_a_file_that_stays_shorter_was_begun_again(self, tmp_path):
        path = tmp_path / "log"
        path.write_text("a\nb\nc\n")
        file = GrowingFile(str(path), parse_text, skip=True)
        path.write_text("a\n")
        assert [list(file.lines(last=False)) for _ in range(3)] == [[], ["a"], []]
        path.write_text("z\n")
        assert list(file.lines(last=True)) == ["z"]

    @pytest.mark.parametrize("text", ["loss=1", "loss=2", "x"])
    def test_a_line_without_end_that_is_written_again(self, tmp_path, text):
        path = tmp_path / "log"
        path.write_text("loss=1")
        os.utime(path, ns=(1, 1))
        file = GrowingFile(str(path), parse_text, skip=True)
        assert list(file.lines(last=True)) == []
        path.write_text(text)
        assert list(file.lines(last=False)) == []
        assert list(file.lines(last=True)) == [text]

    def test_csv_header_of_an_earlier_attempt(self, tmp_path):
        path = tmp_path / "m.csv"
        path.write_text("epoch,loss\n1,0.5\n")
        (source,) = open_sources(MetricsSpec(file=str(path)), ())
        with path.open("a") as out:
            out.write("2,0.25\n")
        assert list(source.poll(0.0)) == [({"epoch": 2, "loss": 0.25}, None)]

    def test_csv_header_that_gets_more_names(self, tmp_path):
        """Lightning's CSVLogger writes the whole file again when a metric comes for the first time."""
        path = tmp_path / "m.csv"
        (source,) = open_sources(MetricsSpec(file=str(path)), ())
        for text, expected in [
            ("epoch,step,train_loss\n0,9,0.9\n", [{"epoch": 0, "step": 9, "train_loss": 0.9}]),
            ("epoch,lr,step,train_loss\n0,,9,0.9\n", []),
            (
                "epoch,lr,step,train_loss\n0,,9,0.9\n1,0.01,19,0.7\n",
                [{"epoch": 1, "lr": 0.01, "step": 19, "train_loss": 0.7}],
            ),
            (
                "epoch,lr,step,train_loss,val_loss\n0,,9,0.9,\n1,0.01,19,0.7,\n1,,19,,0.6\n",
                [{"epoch": 1, "step": 19, "val_loss": 0.6}],
            ),
        ]:
            path.write_text(text)
            assert [values for values, _ in [*source.poll(0.0), *source.poll(0.0)]] == expected

    def test_csv_header_that_comes_again_with_other_names(self, tmp_path):
        path = tmp_path / "m.csv"
        (source,) = open_sources(MetricsSpec(file=str(path)), ())
        path.write_text("epoch,loss\n1,0.5\nepoch,acc,loss\n1,0.9,0.5\n")
        assert [values for values, _ in source.poll(0.0)] == [
            {"epoch": 1, "loss": 0.5},
            {"epoch": 1, "acc": 0.9, "loss": 0.5},
        ]

    def test_tsv_with_an_empty_first_name(self, tmp_path):
        path = tmp_path / "m.tsv"
        (source,) = open_sources(MetricsSpec(file=str(path)), ())
        path.write_text("\tepoch\tloss\n0\t1\t0.5\n\t2\t\n")
        assert [values for values, _ in source.poll(0.0)] == [{"epoch": 1, "loss": 0.5}, {"epoch": 2}]

    def test_mlflow_store(self, tmp_path):
        source = MlflowSource(str(tmp_path))
        folder = tmp_path / "0" / "run" / "metrics" / "val"
        folder.mkdir(parents=True)
        (folder / "loss").write_text("1 0.5 1\n2 0.25 2\n")
        (folder.parent / "acc").write_text("1 0.9 1\n")
        assert list(source.poll(0.0)) == [({"val/loss": 0.5, "acc": 0.9}, 1), ({"val/loss": 0.25}, 2)]
        assert list(source.poll(0.0)) == []

    @pytest.mark.parametrize("kind", [TensorBoardSource, MlflowSource])
    def test_a_folder_that_vanishes_meanwhile(self, kind, tmp_path, monkeypatch):
        (tmp_path / "metrics").mkdir()
        (tmp_path / "metrics" / "events.tfevents.1").symlink_to(tmp_path / "none")
        source = kind(str(tmp_path))
        scandir, calls = os.scandir, iter(range(9))

        def vanishing(path):
            if next(calls) == 0:
                raise FileNotFoundError(path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", vanishing)
        assert [list(source.poll(0.0)) for _ in range(2)] == [[], []]

    def test_a_damaged_event_file_is_left_out(self, tmp_path, caplog):
        source = TensorBoardSource(str(tmp_path))
        (tmp_path / "events.out.tfevents.1").write_bytes(b"\xff" * 64)
        assert list(source.poll(0.0)) == []
        assert "not a readable event file" in caplog.text

    def test_a_page_of_this_machine_needs_no_proxy(self, tmp_path, monkeypatch):
        (tmp_path / "metrics").write_text("loss 0.5\n")
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for host in ("127.0.0.1", "localhost"):
                source = PrometheusSource(f"http://{host}:{server.server_port}/metrics", 5)
                assert list(source.poll(0.0)) == [({"loss": 0.5}, None)]
            server.shutdown()

    def test_another_machine_is_asked_through_the_proxy(self, tmp_path, monkeypatch):
        asked = []

        class Proxy(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"loss 0.5\n")

        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
            source = PrometheusSource("http://trainer.invalid:8000/metrics", 5)
            assert list(source.poll(0.0)) == [({"loss": 0.5}, None)]
            server.shutdown()
        assert asked == ["http://trainer.invalid:8000/metrics"]

    @pytest.mark.parametrize(
        "answer", [b"no answer\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nloss"]
    )
    def test_a_page_that_is_cut_off(self, answer):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            source = PrometheusSource(f"http://127.0.0.1:{server.getsockname()[1]}/metrics", 5)
            assert list(source.poll(0.0)) == []
            thread.join()

    def test_a_page_that_is_not_there(self):
        source = PrometheusSource("http://127.0.0.1:1/metrics", 5)
        assert list(source.poll(0.0)) == []


class TestCheckpointFolder:
    def folder(self, tmp_path: Path, **spec) -> CheckpointFolder:
        made = CheckpointFolder(tmp_path / "checkpoint", CheckpointFolderSpec(**spec))
        made.restore(None)
        return made

    def test_it_counts_once_nothing_changes(self, tmp_path):
        folder = self.folder(tmp_path)
        assert folder.poll(0.0) == []
        (folder.path / "model").write_text("1")
        assert [folder.poll(at) for at in (1.0, 2.9)] == [[], []]
        (folder.path / "model").write_text("22")
        assert [folder.poll(at) for at in (3.0, 4.9)] == [[], []]
        assert folder.poll(5.0) == ["model"]
        target = tmp_path / "target"
        target.mkdir()
        assert folder.copy(["model"], target)
        assert (target / "model").read_text() == "22"
        assert folder.poll(9.0) == []
        assert not folder.changed
        assert folder.at_end() == []

    def test_unfinished_names_never_count(self, tmp_path):
        folder = self.folder(tmp_path)
        for name in (".hidden", "a.tmp", "b.part"):
            (folder.path / name).write_text("x")
        os.mkfifo(folder.path / "pipe")
        assert folder.poll(0.0) == []
        assert folder.at_end() == []

    def test_an_entry_that_never_rests_delays_the_others_briefly(self, tmp_path):
        folder = self.folder(tmp_path, settle_s=1.0)
        (folder.path / "model").write_text("1")
        found = []
        for at in range(MAX_WAIT + 1):
            (folder.path / "log").write_text("x" * (at + 1))
            found.append(folder.poll(float(at)))
        assert found == [[]] * MAX_WAIT + [["model"]]

    def test_a_ready_file_says_when(self, tmp_path):
        folder = self.folder(tmp_path, ready_file="done")
        (folder.path / "model").write_text("1")
        assert folder.poll(100.0) == []
        (folder.path / "done").write_text("")
        assert folder.poll(100.0) == ["done", "model"]
        target = tmp_path / "target"
        target.mkdir()
        assert folder.copy(["done", "model"], target)
        (folder.path / "model").write_text("2")
        assert folder.poll(200.0) == []
        (folder.path / "done").write_text("2")
        assert folder.poll(200.0) == ["done", "model"]

    def test_a_change_during_the_copy_is_noticed(self, tmp_path, monkeypatch):
        from trialpod.runner.command import checkpoint_folder

        folder = self.folder(tmp_path)
        (folder.path / "sub").mkdir()
        (folder.path / "sub" / "a").write_text("1")
        target = tmp_path / "target"
        target.mkdir()
        real = checkpoint_folder.copy_file

        def racing(source: str, place: str) -> None:
            real(source, place)
            (folder.path / "sub" / "b").write_text("2")

        monkeypatch.setattr(checkpoint_folder, "copy_file", racing)
        assert not folder.copy(["sub"], target)
        assert list(target.iterdir()) == []
        monkeypatch.undo()
        assert folder.copy(["sub"], target)
        assert sorted(path.name for path in (target / "sub").iterdir()) == ["a", "b"]

    def test_restore_leaves_nothing_else(self, tmp_path):
        source = tmp_path / "source"
        (source / "sub").mkdir(parents=True)
        (source / "sub" / "a").write_text("1")
        folder = self.folder(tmp_path)
        (folder.path / "old").write_text("x")
        folder.restore(source)
        assert [path.name for path in folder.path.iterdir()] == ["sub"]
        assert not folder.changed
