"""The main of a trial's container, for real: ``python -m trialpod.runner.pod`` against a report service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_server import ReportServer

from trialpod.protocol.messages import Assignment, Horizon, ReportAnswer, ReportRequest, TrainableRef

pytestmark = pytest.mark.local


class Container:
    """What a pod gives to the process, in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ReportServer(folder, tcp=True)
        self.message = folder / "termination-log"
        self.message.touch()
        self.image = folder / "image"
        self.image.mkdir()
        self.process: subprocess.Popen[str] | None = None

    def assignment(self, source: str, **fields: Any) -> Assignment:
        values: dict[str, Any] = {
            "trial_id": "t1",
            "attempt": 1,
            "trial_name": "train_t1",
            "experiment": "digits",
            "experiment_tag": "0",
            "trial_dir": str(self.folder / "work" / "train_t1"),
            "params": msgspec.Raw(b"\x80"),
            "trainable": TrainableRef(source=textwrap.dedent(source)),
        }
        return Assignment(**{**values, **fields})

    def start(self, source: str, **fields: Any) -> subprocess.Popen[str]:
        self.server.assignments.append(self.assignment(source, **fields))
        env = {
            **os.environ,
            "TRIALPOD_ADDRESS": self.server.address,
            "TRIALPOD_EXPERIMENT": "team/digits",
            "TRIALPOD_RUNNER": "t1/1",
            "TRIALPOD_NODE_IP": "10.1.2.3",
            "TRIALPOD_SCRATCH_DIR": str(self.folder / "work"),
            "TRIALPOD_TERMINATION_LOG": str(self.message),
            "TMPDIR": str(self.folder / "work" / "tmp"),
            "HOME": "/nonexistent",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trialpod.runner.pod"],
            env=env,
            cwd=self.image,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.process

    def run(self, source: str, **fields: Any) -> tuple[int, str]:
        process = self.start(source, **fields)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    with made.server:
        yield made
        if made.process is not None:
            made.process.kill()
            made.process.wait()
            assert made.process.stdout is not None
            made.process.stdout.close()


def test_trial_completes_and_prints_to_container_output(container: Container) -> None:
    status, output = container.run(
        """
        import os, tempfile
        from trialpod.tune.session import report
        def train(config):
            print("in", os.getcwd(), "home", os.path.expanduser("~"), "temporary", tempfile.gettempdir())
            report({"x": 1})
        """
    )
    work = container.folder / "work"
    assert (status, container.server.ends[0].cause) == (0, "completed"), output
    assert f"in {work / 'train_t1'} home {work / 'home'} temporary {work / 'tmp'}" in output
    assert (container.server.asked[0].runner, container.server.asked[0].node_ip) == ("t1/1", "10.1.2.3")
    assert container.message.read_text() == ""


def test_code_in_the_images_working_directory_is_found(container: Container) -> None:
    (container.image / "mycode.py").write_text("def train(config): print('found')\n")
    status, output = container.run("", trainable=TrainableRef(entrypoint="mycode:train"))
    assert (status, output) == (0, "found\n")


def test_why_an_attempt_failed_stands_in_the_termination_message(container: Container) -> None:
    status, output = container.run("def train(config):\n    raise ValueError('no such data set')\n")
    assert (status, container.server.ends[0].cause) == (1, "failed")
    assert container.message.read_text().startswith("ValueError: no such data set (")
    assert "Traceback" in output


def test_sigterm_to_the_init_preempts_the_attempt(container: Container) -> None:
    process = container.start(
        """
        import time
        from trialpod.tune.session import get_context, report
        def train(config):
            step = 0
            while True:
                step += 1
                report({"step": step})
                time.sleep(0.01)
        """,
        grace_s=2.0,
    )
    container.server.wait(lambda: len(container.server.results) > 3)
    process.send_signal(signal.SIGTERM)
    container.server.wait(lambda: bool(container.server.ends))
    assert container.server.ends[0].cause == "preempted"
    assert process.wait(30) == 0


def test_sigterm_before_there_is_work_ends_the_container_at_once(container: Container) -> None:
    asked = container.server.asked
    with container.server.changed:  # the request for work hangs
        process = container.start("def train(config): ...\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert len(asked) <= 1


def test_orphans_of_user_code_are_collected(container: Container) -> None:
    status, output = container.run(
        """
        import os, subprocess, sys, time
        CODE = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else time.sleep(0.05); os._exit(0)"
        def train(config):
            orphan = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout.split()[-1]
            until = time.monotonic() + 90
            while os.path.exists(f"/proc/{orphan}") and time.monotonic() < until:
                time.sleep(0.01)
            print("gone" if not os.path.exists(f"/proc/{orphan}") else "a zombie")
            print("own child", subprocess.run(["sh", "-c", "exit 3"]).returncode)
        """
    )
    assert (status, output) == (0, "gone\nown child 3\n")


def test_killed_runner_gives_shell_status_and_signal(container: Container) -> None:
    status, output = container.run(
        "import os, signal\ndef train(config):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert status == 128 + signal.SIGKILL
    assert "killed by SIGKILL; most likely the container reached its memory limit" in container.message.read_text()
    assert output.startswith("trialpod: the trial's process was killed by SIGKILL")


def test_unknown_exit_status_of_runtimes_is_never_used(container: Container) -> None:
    status, _ = container.run("import os\ndef train(config):\n    os._exit(255)\n")
    assert status == 1
    assert container.message.read_text() == "the trial's process exited with status 255"


def test_a_process_that_is_refused_says_so_and_exits_with_1(container: Container) -> None:
    container.server.faults.extend([403] * 10)
    status, output = container.run(
        "from trialpod.tune.session import report\ndef train(config):\n    report({'x': 1})\n    report({'x': 2})\n"
    )
    assert status == 1
    assert "attempt 1 of trial t1 may not report any more: scripted 403" in output


EXPLOITED = """
import os
from trialpod.tune.session import get_context, report
def train(config):
    print("runs in", os.getpid(), flush=True)
    for step in range(3):
        report({"step": step})
"""


def test_next_trial_runs_in_a_fresh_process_of_the_same_pod(container: Container) -> None:
    container.server.policy = lambda request, answer: (
        msgspec.structs.replace(answer, decision="exploit") if request.attempt == 1 else answer
    )
    process = container.start(EXPLOITED, horizons=[Horizon()])
    second = container.assignment(EXPLOITED, attempt=2)
    container.server.assignments.append(second)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert [(end.cause, end.asks) for end in container.server.ends] == [("paused", True), ("completed", False)]
    assert [asked.runner for asked in container.server.asked] == ["t1/1", "t1/1"]
    assert len(set(output.split())) == 4, output  # two pids


PRINTS = """
import os, subprocess, sys
from trialpod.tune.session import report
def train(config):
    orphan = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("runs in", os.getpid(), "with", orphan.pid, end="", flush=True)
    report({"score": 1})
    if config.get("fails"):
        raise ValueError("no")
"""


def test_trials_sharing_a_pod_have_own_processes_and_lines(container: Container) -> None:
    from trialpod.protocol.output import sections

    uri = f"file://{container.folder / 'stored'}"
    process = container.start(PRINTS, reuse=True, checkpoint_uri=uri)
    for name, fields in {"t2": {}, "t3": {"params": msgspec.Raw(msgspec.msgpack.encode({"fails": True}))}}.items():
        folder = str(container.folder / "work" / name)
        more = {"trial_id": name, "reuse": True, "trial_dir": folder, "checkpoint_uri": uri, **fields}
        container.server.assignments.append(container.assignment(PRINTS, **more))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    ends = [(end.cause, end.asks) for end in container.server.ends]
    assert ends == [("completed", True), ("completed", True), ("failed", False)]
    assert [(asked.runner, asked.afresh) for asked in container.server.asked] == [("t1/1", True)] * 3
    found = sections(output)
    assert [(each.trial_id, each.attempt) for each in found] == [("t1", 1), ("t2", 1), ("t3", 1)]
    words = [each.text.splitlines()[1].split() for each in found]
    assert len({each[2] for each in words}) == 3, output
    left = [int(each[-1]) for each in words[:2] if os.path.exists(f"/proc/{each[-1]}")]
    assert left == []
    assert not (container.folder / "work" / "train_t1").exists()
    assert (container.folder / "work" / "t3").exists()


KEPT = """
from trialpod import tune
class Train(tune.Trainable):
    def step(self):
        return {"score": 1, "done": True}
    def reset_config(self, config):
        return True
"""


def test_a_terminated_pod_asks_for_no_other_trial(container: Container) -> None:
    """SIGTERM comes while the end of a trial is reported, and the pod has an object for the next one."""

    def terminate(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        if request.end is not None:
            pid = container.server.asked[0].pid
            os.kill(pid, signal.SIGTERM)
            while _is_pending(pid, signal.SIGTERM):
                threading.Event().wait(0.01)
        return answer

    container.server.policy = terminate
    process = container.start(KEPT, reuse=True)
    container.server.assignments.append(container.assignment(KEPT, trial_id="t2", reuse=True))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert [(end.cause, end.asks) for end in container.server.ends] == [("completed", True)]
    assert len(container.server.asked) == 1


def _is_pending(pid: int, number: int) -> bool:
    pending = re.findall(r"^S(?:ig|hd)Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in pending)
