"""Attempt processes, for real: ``python -m trialpod.runner`` against a report service on a Unix socket."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from report_server import ReportServer

from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import (
    Assignment,
    CheckpointInfo,
    CheckpointRules,
    Horizon,
    ReportAnswer,
    ReportRequest,
    StopRule,
    TrainableRef,
)

pytestmark = pytest.mark.local


class World:
    """A temporary folder, a server, and the processes started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ReportServer(folder)
        self.trial_dir = folder / "trial"
        self.processes: list[subprocess.Popen[str]] = []

    def assignment(self, source: str | None = None, *, ref: TrainableRef | None = None, **fields: Any) -> Assignment:
        params = msgspec.Raw(msgspec.msgpack.encode(fields.pop("config", {})))
        values: dict[str, Any] = {
            "trial_id": "t1",
            "attempt": 1,
            "trial_name": "train_t1",
            "experiment": "exp",
            "experiment_tag": "0",
            "trial_dir": str(self.trial_dir),
            "params": params,
            "trainable": ref or TrainableRef(source=textwrap.dedent(source or "")),
        }
        return Assignment(**{**values, **fields})

    def start(self, *assignments: Assignment) -> subprocess.Popen[str]:
        self.server.assignments.extend(assignments)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "trialpod.runner"),
                *("--address", self.server.address, "--experiment", "exp", "--runner", "r1"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def run(self, *assignments: Assignment, status: int = 0) -> str:
        process = self.start(*assignments)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == status, output
        return output

    def run_source(self, source: str, **fields: Any) -> str:
        return self.run(self.assignment(source, **fields))

    def column(self, key: str) -> list[Any]:
        return [result.get(key) for result in self.server.results]

    @property
    def end(self) -> Any:
        assert len(self.server.ends) == 1, self.server.ends
        return self.server.ends[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.server:
        yield made
        for process in made.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


LOOP = """
from trialpod.tune.session import report
def train(config):
    for step in range(config.get("n", 5)):
        report({"step": step})
"""

COUNTER = """
from trialpod.tune.trainable.trainable import Trainable
class Counter(Trainable):
    def setup(self, config):
        self.count = 0
        print("setup", config)
    def step(self):
        self.count += 1
        return {"count": self.count}
    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count}
    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]
    def cleanup(self):
        print("cleanup")
"""


# Function Trainables.


def test_every_report_is_one_iteration_and_the_end_is_completed(world: World) -> None:
    world.run_source(LOOP)
    assert world.column("step") == [0, 1, 2, 3, 4]
    assert world.column("training_iteration") == [1, 2, 3, 4, 5]
    assert world.column("done") == [False] * 5
    assert world.end.cause == "completed"
    keys = set(world.server.results[0])
    assert keys == {
        "step", "training_iteration", "time_this_iter_s", "time_total_s", "time_since_restore",
        "iterations_since_restore", "timestamp", "date", "done", "checkpoint_dir_name",
    }  # fmt: skip


def test_a_returned_dict_is_one_more_report(world: World) -> None:
    world.run_source("def f(config): return {'loss': {'train': config['x']}}", config={"x": 3})
    assert world.column("loss/train") == [3]


def test_a_returned_number_is_reported_as_the_default_metric(world: World) -> None:
    world.run_source("def f(config): return 0.5")
    assert world.column("_metric") == [0.5]


@pytest.mark.parametrize("value", ["None", "0", "{}"])
def test_a_return_value_that_says_nothing_reports_nothing(world: World, value: str) -> None:
    world.run_source(f"def f(config): return {value}")
    assert (world.server.results, world.end.cause) == ([], "completed")


def test_every_yielded_dict_or_number_is_a_report(world: World) -> None:
    world.run_source("def f(config):\n    yield {'a': 1}\n    yield 2\n")
    assert world.column("a") == [1, None]
    assert world.column("_metric") == [None, 2]


def test_result_that_meets_stop_rule_is_last_and_finally_runs(world: World) -> None:
    output = world.run_source(
        """
        from trialpod.tune.session import report
        def f(config):
            try:
                for step in range(100):
                    report({"step": step})
            finally:
                print("tidy")
        """,
        stop_rules=[StopRule("step", 2.0)],
    )
    assert world.column("done") == [False, False, True]
    assert world.end.cause == "completed"
    assert "tidy" in output


def test_code_that_swallows_the_stop_gets_it_again(world: World) -> None:
    world.run_source(
        """
        from trialpod.tune.session import report
        def f(config):
            for step in range(10):
                try:
                    report({"step": step})
                except BaseException:
                    pass
        """,
        stop_rules=[StopRule("training_iteration", 2.0)],
    )
    assert world.column("step") == [0, 1]
    assert world.end.cause == "completed"


def test_code_that_catches_exceptions_does_not_catch_the_stop(world: World) -> None:
    output = world.run_source(
        """
        from trialpod.tune.session import report
        def f(config):
            try:
                while True:
                    report({"x": 1})
            except Exception:
                print("caught")
        """,
        stop_rules=[StopRule("training_iteration", 3.0)],
    )
    assert "caught" not in output


@pytest.mark.parametrize(("decision", "cause"), [("stop", "stopped"), ("pause", "paused")])
def test_decision_at_the_horizon_ends_the_function_there(world: World, decision: Any, cause: str) -> None:
    def policy(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        answer.decision = decision if answer.received >= 3 else None
        answer.horizons = [Horizon("training_iteration", 3.0)]
        return answer

    world.server.policy = policy
    world.run_source(LOOP, config={"n": 50}, horizons=[Horizon("training_iteration", 3.0)])
    assert world.column("step") == [0, 1, 2]
    assert world.end.cause == cause


def test_every_result_waits_when_the_horizon_says_so(world: World) -> None:
    world.server.policy = lambda request, answer: msgspec.structs.replace(answer, horizons=[Horizon()])
    world.run_source(LOOP, horizons=[Horizon()])
    assert [len(request.results) for request in world.server.requests if request.results] == [1] * 5


def test_function_checkpoint_is_found_by_the_next_attempt(world: World) -> None:
    source = """
        import os, tempfile
        from trialpod.tune.session import report, get_checkpoint
        from trialpod.tune.checkpoints.checkpoint import Checkpoint
        def f(config):
            start = 0
            if checkpoint := get_checkpoint():
                with checkpoint.as_directory() as d:
                    start = int(open(os.path.join(d, "n")).read()) + 1
            for step in range(start, config["to"]):
                with tempfile.TemporaryDirectory() as d:
                    open(os.path.join(d, "n"), "w").write(str(step))
                    report({"step": step}, checkpoint=Checkpoint.from_directory(d))
        """
    world.run_source(source, config={"to": 3}, checkpoint_rules=CheckpointRules(num_to_keep=1))
    made = world.server.checkpoints
    assert [info.iteration for info in made] == [1, 2, 3]
    assert world.server.deleted == [info.name for info in made[:2]]
    assert sorted(p.name for p in world.trial_dir.glob("checkpoint_*")) == [made[2].name]
    assert world.column("checkpoint_dir_name") == [info.name for info in made]
    garbage = world.trial_dir / "checkpoint_000077"
    garbage.mkdir()
    world.server.ends.clear()
    world.run_source(source, config={"to": 5}, attempt=2, checkpoints=made[2:], next_checkpoint_index=3)
    assert world.column("step") == [0, 1, 2, 3, 4]
    assert world.column("training_iteration") == [1, 2, 3, 4, 5]
    assert world.column("iterations_since_restore") == [1, 2, 3, 1, 2]
    assert not garbage.exists()


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(world: World) -> None:
    world.run_source(COUNTER, stop_rules=[StopRule("count", 2.0)], checkpoint_rules=CheckpointRules(frequency=1))
    made = world.server.checkpoints
    (world.trial_dir / made[-1].name / "_dict_checkpoint.pkl").unlink()
    world.server.ends.clear()
    output = world.run_source(COUNTER, attempt=2, checkpoints=made, stop_rules=[StopRule("count", 2.0)])
    assert f"skipped {made[-1].name}" in output
    assert world.column("count") == [1, 2, 2]


def test_working_directory_is_the_trials_and_is_restored(world: World) -> None:
    world.run_source(
        "import os\ndef f(config): return {'here': os.getcwd(), 'there': os.environ['TRIALPOD_ORIG_WORKING_DIR']}"
    )
    assert world.column("here") == [str(world.trial_dir)]
    assert world.column("there") == [str(world.folder)]


def test_the_context_names_the_trial(world: World) -> None:
    world.run_source(
        """
        from trialpod.tune.session import get_context
        def f(config):
            c = get_context()
            return {
                "id": c.get_trial_id(), "name": c.get_trial_name(), "exp": c.get_experiment_name(),
                "dir": c.get_trial_dir(), "res": c.get_trial_resources(),
                "pre": c.preempted, "left": c.time_left_s,
            }
        """,
        resources={"cpu": 2.0},
    )
    got = world.server.results[0]
    assert (got["id"], got["name"], got["exp"], got["dir"]) == ("t1", "train_t1", "exp", str(world.trial_dir))
    assert (got["res/cpu"], got["pre"], got["left"]) == (2.0, False, None)


# How code fails.


def test_an_exception_is_a_failure_with_the_users_frames_only(world: World) -> None:
    source = "def inner():\n    raise ValueError('lr must be positive')\ndef f(config):\n    inner()\n"
    output = world.run(world.assignment(ref=TrainableRef(source=source, attribute="f")))
    end = world.end
    assert end.cause == "failed"
    assert end.retry
    assert end.error.startswith("ValueError: lr must be positive (trialpod_source_")
    assert "in inner" in end.error
    assert "raise ValueError('lr must be positive')" in end.traceback
    assert "function_runner.py" not in end.traceback
    assert "lr must be positive" in output


@pytest.mark.parametrize(
    ("code", "cause"), [("sys.exit()", "completed"), ("sys.exit(0)", "completed"), ("sys.exit(3)", "failed")]
)
def test_sys_exit_ends_the_attempt_by_its_status(world: World, code: str, cause: str) -> None:
    world.run_source(f"import sys\ndef f(config):\n    {code}\n")
    assert world.end.cause == cause


BAD = {
    "no_module": (TrainableRef(entrypoint="nowhere_at_all:f"), "no module 'nowhere_at_all'"),
    "form": (TrainableRef(entrypoint="train.py"), 'not of the form "module:attribute"'),
    "attribute": (TrainableRef(entrypoint="mod:trian"), "did you mean 'train'"),
    "raises": (TrainableRef(entrypoint="raises:f"), "ZeroDivisionError"),
    "exits": (TrainableRef(entrypoint="exits:f"), "SystemExit"),
    "needs": (TrainableRef(entrypoint="needs:f"), "install 'not_installed_anywhere'"),
    "syntax": (TrainableRef(entrypoint="syntax:f"), "syntax error in syntax.py, line 1"),
    "class": (TrainableRef(entrypoint="mod:Plain"), "does not derive from"),
    "value": (TrainableRef(entrypoint="mod:value"), "is a int"),
    "two_arguments": (TrainableRef(entrypoint="mod:two"), "two(config, other) cannot be tuned"),
    "no_arguments": (TrainableRef(entrypoint="mod:none"), "none() cannot be tuned"),
    "coroutine": (TrainableRef(entrypoint="mod:coro"), "asyncio.run"),
    "source": (TrainableRef(source="def f(:"), "inline source has a syntax error"),
    "source_several": (TrainableRef(source="def f(c): 0\ndef g(c): 0"), "(f, g)"),
    "source_nothing": (TrainableRef(source="x = 1"), "neither a function nor a class"),
    "pickle_missing": (TrainableRef(pickle="/nonexistent.pkl"), "cannot be read"),
    "nothing": (TrainableRef(), "names no trainable"),
}


@pytest.mark.parametrize("case", BAD)
def test_unloadable_trainable_says_why_and_is_not_retried(world: World, case: str) -> None:
    ref, message = BAD[case]
    files = {
        "mod": "def train(config): ...\nclass Plain: ...\nvalue = 3\ndef two(config, other): ...\n"
        "def none(): ...\nasync def coro(config): ...\n",
        "raises": "1 / 0\n",
        "exits": "raise SystemExit(3)\n",
        "needs": "import not_installed_anywhere\n",
        "syntax": "def f(:\n",
    }
    for name, text in files.items():
        (world.folder / f"{name}.py").write_text(text)
    world.run(world.assignment(ref=ref))
    end = world.end
    assert (end.cause, end.retry) == ("failed", False)
    assert message in end.error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("report([1])", "needs a dict of metrics"),
        ("report({('a',): 1})", "type tuple; keys are strings"),
        ("report({'big': 'x' * 9_000_000})", "this result is 9.0 MB with"),
        ("report({'a': 1}, checkpoint='dir')", "needs a Checkpoint"),
        ("report({'a': 1}, checkpoint=Checkpoint('/nonexistent'))", "does not exist"),
        ("return 'text'", "it may return a dict"),
    ],
)
def test_what_cannot_be_reported_fails_with_what_was_wrong(world: World, body: str, message: str) -> None:
    world.run_source(
        f"from trialpod.tune.session import report\nfrom trialpod.tune.checkpoints.checkpoint import Checkpoint\n"
        f"def f(config):\n    {body}\n"
    )
    assert world.end.cause == "failed"
    assert message in world.end.error


def test_report_in_a_forked_child_raises_and_trial_continues(world: World) -> None:
    output = world.run_source(
        """
        import os
        from trialpod.tune.session import report
        def f(config):
            report({"x": 1})
            pid = os.fork()
            if pid == 0:
                report({"x": 2})
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            report({"x": 3, "status": status})
        """
    )
    assert world.column("x") == [1, 3]
    assert world.column("status")[-1] == 1
    assert "child process forked by the trial" in output
    assert world.end.cause == "completed"


def test_a_forked_child_that_returns_does_not_end_the_trial(world: World) -> None:
    world.run_source(
        "import os\ndef f(config):\n    pid = os.fork()\n    if pid == 0:\n        return {'x': None}\n"
        "    os.waitpid(pid, 0)\n    return {'x': 2}\n"
    )
    assert world.column("x") == [2]
    assert world.end.cause == "completed"


def test_a_pickled_function_runs_and_a_changed_file_is_refused(world: World) -> None:
    data = cloudpickle.dumps(lambda config: {"twice": config["x"] * 2})
    file = world.folder / "f.pkl"
    file.write_bytes(data)
    good = TrainableRef(pickle=str(file), sha256=hashlib.sha256(data).hexdigest())
    world.run(world.assignment(ref=good, config={"x": 4}))
    assert world.column("twice") == [8]
    world.server.ends.clear()
    file.write_bytes(data + b"x")
    world.run(world.assignment(ref=good))
    assert "checksum" in world.end.error
    world.server.ends.clear()
    file.write_bytes(b"\x80\x05garbage")
    world.run(world.assignment(ref=TrainableRef(pickle=str(file))))
    assert f"runs Python {sys.version_info.major}.{sys.version_info.minor}" in world.end.error


# Class Trainables.


def test_a_class_steps_until_a_stop_rule_and_cleans_up(world: World) -> None:
    output = world.run_source(COUNTER, stop_rules=[StopRule("count", 3.0)])
    assert world.column("count") == [1, 2, 3]
    assert world.column("done") == [False, False, True]
    assert not {"config", "pid", "trial_id", "hostname"} & set(world.server.results[0])
    assert output.count("cleanup") == 1


def test_class_checkpoints_come_at_the_frequency_and_at_the_end(world: World) -> None:
    world.run_source(
        COUNTER, stop_rules=[StopRule("count", 5.0)], checkpoint_rules=CheckpointRules(frequency=2, at_end=True)
    )
    assert [info.iteration for info in world.server.checkpoints] == [2, 4, 5]
    assert [name is not None for name in world.column("checkpoint_dir_name")] == [False, True, False, True, True]


def test_class_without_save_completes_with_checkpoint_at_end(world: World) -> None:
    output = world.run_source(
        "from trialpod.tune.trainable.trainable import Trainable\n"
        "class T(Trainable):\n    def step(self): return {'done': True}\n",
        checkpoint_rules=CheckpointRules(at_end=True),
    )
    assert world.end.cause == "completed"
    assert "does not define save_checkpoint" in output


def test_paused_class_saves_checkpoint_for_next_attempt(world: World) -> None:
    def policy(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        answer.decision = "pause" if answer.received >= 3 else None
        return answer

    world.server.policy = policy
    world.run_source(COUNTER, horizons=[Horizon("count", 3.0)])
    made = world.server.checkpoints
    assert world.end.cause == "paused"
    assert [info.iteration for info in made] == [3]
    world.server.ends.clear()
    world.server.policy = lambda request, answer: answer
    world.run_source(COUNTER, attempt=2, checkpoints=made, checkpoint=made[0], stop_rules=[StopRule("count", 5.0)])
    assert world.column("count") == [1, 2, 3, 4, 5]
    assert world.column("training_iteration") == [1, 2, 3, 4, 5]


def test_a_step_that_returns_no_dict_fails_and_is_quoted(world: World) -> None:
    world.run_source(
        "from trialpod.tune.trainable.trainable import Trainable\nclass T(Trainable):\n    def step(self): return 7\n"
    )
    assert "T.step() returned 7 of type int" in world.end.error


def test_a_reused_process_resets_the_object_or_makes_a_new_one(world: World) -> None:
    resetting = COUNTER + "    def reset_config(self, c):\n        self.count = 0\n        return True\n"
    for source, setups in ((resetting, 1), (COUNTER, 2)):
        common: dict[str, Any] = {"stop_rules": [StopRule("count", 2.0)], "reuse": True}
        output = world.run(
            world.assignment(source, trial_id="a", config={"x": 1}, **common),
            world.assignment(source, trial_id="b", config={"x": 2}, **common),
        )
        assert output.count("setup") == setups
        assert output.count("cleanup") == setups
        assert world.column("training_iteration") == [1, 2, 1, 2]
        world.server.results.clear()


# What the network does.


def test_results_arrive_exactly_once_despite_faults(world: World) -> None:
    world.server.faults.extend(["drop", "lose", 503, None, "lose", "drop", 500] * 3)
    world.server.policy = lambda request, answer: msgspec.structs.replace(
        answer, horizons=[Horizon("training_iteration", answer.received + 7.0)]
    )
    world.run_source(LOOP, config={"n": 60}, horizons=[Horizon("training_iteration", 1.0)])
    assert world.column("step") == list(range(60))
    assert world.server.numbers == list(range(1, 61))


def test_an_unreachable_server_stops_nobody_before_the_horizon(world: World) -> None:
    world.server.faults.extend([503] * 1000)
    process = world.start(
        world.assignment(LOOP + "    open('ran', 'w').close()\n", config={"n": 5000}, horizons=[Horizon("step", 1e9)])
    )
    world.server.wait((world.trial_dir / "ran").exists)
    assert world.server.results == []
    world.server.faults.clear()
    assert process.wait(30) == 0
    assert world.column("step") == list(range(5000))


def test_a_restarted_server_gets_what_it_has_not(world: World) -> None:
    world.server.durable_lag = 4
    forgotten = []

    def policy(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        if answer.received == 6 and not forgotten:
            forgotten.append(True)
            del world.server.results[4:], world.server.numbers[4:]
            world.server.received = answer.received = 4
            answer.durable = 2
        if answer.received == 10:
            world.server.durable_lag, answer.durable = 0, 10
        answer.horizons = [Horizon()]
        return answer

    world.server.policy = policy
    world.run_source(LOOP, config={"n": 10}, horizons=[Horizon()])
    assert world.column("step") == list(range(10))


def test_a_superseded_attempt_leaves_without_a_word(world: World) -> None:
    world.server.policy = lambda request, answer: ReportAnswer(superseded=True)
    world.run(world.assignment(LOOP, config={"n": 100}, horizons=[Horizon()]), status=1)
    assert world.server.ends == []


def test_superseded_attempt_leaves_in_mid_step(world: World) -> None:
    world.server.policy = lambda request, answer: ReportAnswer(superseded=True)
    world.run(
        world.assignment("import threading\ndef f(config): threading.Event().wait()", heartbeat_s=0.05), status=1
    )


def test_a_refused_attempt_ends_with_the_servers_words(world: World) -> None:
    world.server.faults.extend([403] * 10)
    output = world.run(world.assignment(LOOP, horizons=[Horizon()]), status=1)
    assert "scripted 403" in output


def test_heartbeat_stops_a_trial_before_its_first_report(world: World) -> None:
    beats: list[int] = []

    def policy(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        beats.append(len(request.results))
        answer.decision = "stop" if len(beats) >= 3 else None
        if len(beats) == 4:
            (world.trial_dir / "go").touch()
        return answer

    world.server.policy = policy
    world.run_source(
        """
        import os, time
        from trialpod.tune.session import report
        def f(config):
            while not os.path.exists("go"):
                time.sleep(0.01)
            while True:
                report({"x": 1})
        """,
        heartbeat_s=0.03,
    )
    assert beats[:3] == [0, 0, 0]
    assert world.end.cause == "stopped"
    assert world.column("x") == [1]


def test_no_work_is_a_normal_exit(world: World) -> None:
    world.run()
    assert world.server.asked[0].runner == "r1"


# SIGTERM.


def _terminate_when(world: World, process: subprocess.Popen[str], count: int) -> str:
    world.server.wait(lambda: len(world.server.results) >= count)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def test_sigterm_while_asking_for_work_ends_the_process(world: World) -> None:
    world.server.gives.clear()
    process = world.start(world.assignment(LOOP))
    try:
        world.server.wait(lambda: world.server.asked)
        process.send_signal(signal.SIGTERM)
        # With status 0 it would seem to have ended the attempt that it was given in this moment.
        assert process.wait(30) == -signal.SIGTERM
    finally:
        world.server.gives.set()
        process.communicate()


SLOW = COUNTER.replace(
    "        self.count += 1\n", "        self.count += 1\n        import time; time.sleep(0.05)\n"
)


def test_a_preempted_class_finishes_its_step_and_loses_none(world: World) -> None:
    process = world.start(world.assignment(SLOW, grace_s=10.0))
    _terminate_when(world, process, 2)
    assert world.end.cause == "preempted"
    assert world.server.checkpoints[-1].iteration == world.column("count")[-1]


def test_preempted_function_saves_one_last_checkpoint(world: World) -> None:
    process = world.start(
        world.assignment(
            """
            import tempfile, time
            from trialpod.tune.session import report, get_context
            from trialpod.tune.checkpoints.checkpoint import Checkpoint
            def f(config):
                while not get_context().preempted:
                    time.sleep(0.01)
                    report({"pre": False})
                report({"pre": True})
                report({"left": get_context().time_left_s}, checkpoint=Checkpoint(tempfile.mkdtemp()))
                report({"never": 1})
            """
        )
    )
    _terminate_when(world, process, 2)
    assert world.end.cause == "preempted"
    assert len(world.server.checkpoints) == 1
    assert 5 < world.server.results[-1]["left"] <= 10
    assert world.server.results[-2]["pre"] is True


@pytest.mark.parametrize("at_horizon", ["continue", "freeze"])
def test_a_program_is_preempted_while_a_decision_is_awaited(world: World, at_horizon: Any) -> None:
    """It learns of the preemption at once; the report service answers only after the program has saved its state."""
    program = (
        "trap 'echo kept >\"$TRIALPOD_CHECKPOINT_DIR/state\"; touch ended; exit 0' TERM\n"
        "touch ready\necho loss=1\nwhile :; do sleep 0.02; done\n"
    )
    (world.folder / "program.sh").write_text(program)
    asked, answers = threading.Event(), threading.Event()

    def decide(request: ReportRequest, answer: ReportAnswer) -> ReportAnswer:
        if request.results:
            asked.set()
            answers.wait(30)
        return answer

    world.server.policy = decide
    command = CommandSpec(command=["sh", "program.sh"], working_dir=str(world.folder), at_horizon=at_horizon)
    process = world.start(
        world.assignment(
            ref=TrainableRef(command=command),
            metric="loss",
            horizons=[Horizon("training_iteration", 1)],
            grace_s=60.0,
        )
    )
    try:
        assert asked.wait(90)
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 90
        while not (world.folder / "ended").exists():
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
    finally:
        answers.set()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert world.end.cause == "preempted"
    assert len(world.server.checkpoints) == 1


def test_code_without_boundary_in_time_ends_as_preempted(world: World) -> None:
    process = world.start(
        world.assignment(
            "import threading\nfrom trialpod.tune.session import report\n"
            "def f(config):\n    report({'x': 1})\n    threading.Event().wait()\n",
            grace_s=0.5,
        )
    )
    _terminate_when(world, process, 1)
    assert world.end.cause == "preempted"
    assert "grace period of 0.5 s" in world.end.error


def test_what_breaks_after_sigterm_does_not_count_as_a_failure(world: World) -> None:
    process = world.start(
        world.assignment(
            """
            import time
            from trialpod.tune.session import report, get_context
            def f(config):
                report({"x": 1})
                while not get_context().preempted:
                    time.sleep(0.01)
                raise OSError("the volume is gone")
            """
        )
    )
    _terminate_when(world, process, 1)
    assert (world.end.cause, world.end.error.partition(" (")[0]) == ("preempted", "OSError: the volume is gone")


def test_a_sigterm_to_a_forked_child_is_not_the_trials(world: World) -> None:
    world.run_source(
        """
        import os, signal, time
        from trialpod.tune.session import get_context
        def f(config):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            time.sleep(0.1)
            os.kill(pid, signal.SIGTERM)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return {"status": status, "preempted": get_context().preempted}
        """
    )
    assert world.server.results[0]["status"] == -signal.SIGTERM
    assert world.server.results[0]["preempted"] is False


def test_ctrl_c_is_left_to_the_parent(world: World) -> None:
    world.run_source(
        "import os, signal\ndef f(config):\n    os.kill(os.getpid(), signal.SIGINT)\n    return {'x': 1}\n"
    )
    assert world.end.cause == "completed"


def test_programs_of_a_trial_can_be_interrupted(world: World) -> None:
    interrupted = ["sh", "-c", "kill -INT $$; exit 3"]
    world.run_source(
        f"import subprocess\ndef f(config):\n    return {{'x': subprocess.run({interrupted}).returncode}}\n"
    )
    assert world.column("x") == [-signal.SIGINT]
    world.server.ends.clear()
    world.run(world.assignment(ref=TrainableRef(command=CommandSpec(command=interrupted))))
    assert "killed by SIGINT" in world.end.error


def test_parameters_of_the_users_own_types_arrive_as_they_were(world: World) -> None:
    from trialpod.protocol.values import params_encoder

    params = msgspec.Raw(params_encoder.encode({"shape": (1, 2), "make": json.dumps, "x": None}))
    world.run(world.assignment("def f(config): return {'out': config['make'](config['shape'])}", params=params))
    assert world.column("out") == ["[1, 2]"]
    assert os.path.isdir(world.trial_dir)


def test_unused_record_of_missing_checkpoint_is_ignored(world: World) -> None:
    gone = CheckpointInfo(
        name="checkpoint_000000", index=0, iteration=9, metrics={"training_iteration": 9}, attempt=1
    )
    output = world.run_source(LOOP, attempt=2, checkpoints=[gone], config={"n": 1})
    assert "starts from the beginning" in output
    assert world.column("training_iteration") == [1]
