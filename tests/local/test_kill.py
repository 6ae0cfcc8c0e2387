"""Whatever is killed, and whenever: `trialpod run` continues, loses nothing that was visible, repeats nothing."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_shell import TRIALPOD, Running, Shell, events_of, read_json_lines, wait_gone

from trialpod.storage.journal.journal import Journal
from trialpod_operator.engine.events import AttemptEnded, CheckpointsChanged, ResultsReceived
from trialpod_operator.experiment.records import decode_record
from trialpod_operator.view.reading import ReadExperiment

pytestmark = [pytest.mark.local, pytest.mark.slow]

STARTS = """
import os, json
from trialpod import tune

def note(**fact):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(json.dumps({"trial": tune.get_context().get_trial_id(), **fact}) + "\\n")
"""
CLASS = (
    STARTS
    + """
class Train(tune.Trainable):
    def setup(self, config):
        self.x, self.total = config["x"], 0.0
        note(start=True)
    def step(self):
        self.total += self.x
        import time; time.sleep(float(os.environ.get("STEP_S", "0.004")))
        return {"score": self.total}
    def save_checkpoint(self, folder):
        return {"total": self.total}
    def load_checkpoint(self, state):
        self.total = state["total"]
"""
)
FUNCTION = (
    STARTS
    + """
import pathlib, tempfile, time

def train(config):
    note(start=True)
    done, total = 0, 0.0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done, total = json.loads(pathlib.Path(folder, "state.json").read_text())
    while done < 12:
        done, total = done + 1, total + config["x"]
        time.sleep(0.004)
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "state.json").write_text(json.dumps([done, total]))
            tune.report({"score": total, "step": done}, checkpoint=tune.Checkpoint.from_directory(folder))
"""
)
DIRECTORY = "trialpod-results/exp"


@pytest.fixture
def notes(shell: Shell) -> Path:
    path = shell.folder / "notes"
    shell.env["NOTES"] = str(path)
    return path


def starts(notes: Path) -> Counter[str]:
    return Counter(fact["trial"] for fact in read_json_lines(notes) if "start" in fact)


def visible(shell: Shell) -> dict[str, list[dict[str, Any]]]:
    """Return the complete lines of each result.json."""
    found = {}
    for file in (shell.folder / DIRECTORY).glob("*/result.json"):
        whole = file.read_bytes().rpartition(b"\n")[0]
        found[file.parent.name] = [json.loads(line) for line in whole.splitlines()]
    return found


def finished(events: list[str]) -> set[str]:
    """Return the trials that the output of `--json` says to have ended."""
    found = set()
    for line in events:
        event = json.loads(line)
        if event["event"] == "trial_ended":
            found.add(event["trial_id"])
    return found


def decisions(shell: Shell) -> dict[str, tuple[int, str]]:
    """Return which trials were stopped, at which iteration and why."""
    trials = ReadExperiment(shell.folder / DIRECTORY).engine.state.trials.values()
    return {
        trial.trial_id: (trial.iteration, json.dumps(trial.stop_reason, sort_keys=True))
        for trial in trials
        if trial.stop_reason and trial.status == "TERMINATED"
    }


def kill_at(running: Running, count: int) -> None:
    """Kill the parent after so many events about trials."""
    for _ in range(count):
        running.wait_line('"trial_')
    running.signal(signal.SIGKILL)
    running.wait()


def run_with_kills(shell: Shell, notes: Path, kills: list[int]) -> None:
    """Kill the run again and again, check after each kill, and let it finish."""
    seen: dict[str, list[dict[str, Any]]] = {}
    decided: dict[str, tuple[int, str]] = {}
    ended: Counter[str] = Counter()
    for count in kills:
        running = shell.start("run", "experiment.yaml", "--json")
        kill_at(running, count)
        shell.wait_until_all_gone()
        shell.assert_whole(DIRECTORY)
        before = starts(notes)
        for trial_id in finished(running.lines):
            ended[trial_id] = before[trial_id]
        now = visible(shell)
        for name, rows in seen.items():
            assert _keys(now[name])[: len(rows)] == _keys(rows), f"results of {name} were lost"
        seen = now
        after = decisions(shell)
        assert {key: after.get(key) for key in decided} == decided
        decided = after
    done = shell.run("run", "experiment.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    final = visible(shell)
    for name, rows in seen.items():
        assert _keys(final[name])[: len(rows)] == _keys(rows)
    assert {key: decisions(shell).get(key) for key in decided} == decided
    last = starts(notes)
    assert {key: last[key] for key in ended} == dict(ended)  # nothing that had finished ran again
    check_files(shell)


def _keys(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["training_iteration"], row["score"]) for row in rows]


def journaled(shell: Shell) -> Iterator[Any]:
    journal = Journal.open(shell.folder / DIRECTORY / ".trialpod" / "journal", read_only=True)
    try:
        for data in journal.records():
            yield decode_record(data).event
    finally:
        journal.close()


def check_files(shell: Shell) -> None:
    """All trials are over; the result files are whole and say the same."""
    shell.assert_whole(DIRECTORY)
    results = shell.results(DIRECTORY)
    assert results["counts"]["TERMINATED"] == results["total"] == len(results["trials"])
    count = 0
    for trial in results["trials"]:
        assert trial["failures"] == 0
        folder = Path(trial["path"])
        rows = read_json_lines(folder / "result.json")
        count += len(rows)
        assert rows[-1]["training_iteration"] == trial["iteration"]
        iterations = Counter((row["pid"], row["training_iteration"]) for row in rows)
        assert set(iterations.values()) == {1}, "a result is there twice"
        with (folder / "progress.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        assert [float(row["score"]) for row in table] == [row["score"] for row in rows]
        assert [int(row["training_iteration"]) for row in table] == [row["training_iteration"] for row in rows]
        assert None not in table[0]
    assert count == results["results"]


@pytest.mark.once
@pytest.mark.slow
def test_asha_run_of_classes_survives_kills_at_any_moment(shell: Shell, notes: Path) -> None:
    shell.write("train.py", CLASS)
    shell.manifest(
        trainable={"entrypoint": "train:Train"},
        searchSpace={"x": {"uniform": [0, 1]}},
        metric="score",
        mode="max",
        numSamples=12,
        seed=3,
        scheduler={"name": "asha", "parameters": {"max_t": 9, "grace_period": 1, "reduction_factor": 3}},
        checkpoint={"frequency": 2, "numToKeep": 2},
    )
    run_with_kills(shell, notes, [1, 2, 3, 4, 5, 6])


@pytest.mark.once
def test_killed_run_of_functions_equals_undisturbed_run(shell: Shell, notes: Path) -> None:
    shell.write("train.py", FUNCTION)
    shell.manifest(searchSpace={"x": {"uniform": [0, 1]}}, metric="score", mode="max", numSamples=8, seed=3)
    run_with_kills(shell, notes, [1, 2, 3, 4, 3])
    assert shell.run("run", "experiment.yaml", "--name", "undisturbed", "-q").returncode == 0
    one, other = shell.results(DIRECTORY), shell.results("trialpod-results/undisturbed")
    assert one["best"]["params"] == other["best"]["params"]
    assert one["best"]["value"] == pytest.approx(other["best"]["value"])
    assert sorted(t["value"] for t in one["trials"]) == pytest.approx(sorted(t["value"] for t in other["trials"]))
    for trial in one["trials"]:
        rows = read_json_lines(Path(trial["path"], "result.json"))
        assert {row["step"] for row in rows} == set(range(1, 13))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder with a path that leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="tp") as folder:
        yield Path(folder)


def test_resume_after_kill_prints_one_line_and_cleans_up(shell: Shell, notes: Path, short_folder: Path) -> None:
    temporary = short_folder
    shell.env["TMPDIR"] = str(temporary)
    shell.env["STEP_S"] = "600"
    shell.write("train.py", CLASS)
    shell.manifest(
        trainable={"entrypoint": "train:Train"}, metric="score", mode="max", numSamples=2, stop={"score": 0}
    )
    running = shell.start("run", "experiment.yaml", "--json", "--cpus", "2")
    for _ in range(2):
        running.wait_event("trial_started")
    running.signal(signal.SIGKILL)
    running.wait()
    assert len(list(temporary.iterdir())) == 1  # with the socket
    shell.env["STEP_S"] = "0"
    done = shell.run("run", "experiment.yaml", "--cpus", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    told = [line for line in done.stdout.splitlines() if "interrupt" in line or "attempt" in line or "lost" in line]
    assert len(told) == 1, told
    shell.assert_whole()
    assert (
        "resuming after an interruption: 2 trials were running and will be restarted, 2 from the beginning" in told[0]
    )


BLOCKED = """
import os, threading
from trialpod import tune

class Train(tune.Trainable):
    def setup(self, config):
        self.n = 0
    def step(self):
        self.n += 1
        if self.n == 3 and os.environ.get("UNTIL_PREEMPTED") and not tune.get_context().preempted:
            with open(os.environ["PIPE"], "w") as pipe:
                pipe.write(f"{os.getpid()} {os.getppid()}")
            while not tune.get_context().preempted:
                threading.Event().wait(0.005)
        elif self.n == 3 and not os.path.exists(os.environ["GO"]):
            with open(os.environ["PIPE"], "w") as pipe:
                pipe.write(f"{os.getpid()} {os.getppid()}")
            with open(os.environ["GATE"]) as gate:
                gate.read()
        return {"score": self.n, "done": self.n >= 5}
    def save_checkpoint(self, folder):
        return {"n": self.n}
    def load_checkpoint(self, state):
        self.n = state["n"]
"""


class Blocked:
    """A run whose only trial stands in its third step, until it is unblocked."""

    def __init__(
        self,
        shell: Shell,
        *,
        command: Sequence[str] = TRIALPOD,
        options: Sequence[str] = ("--json",),
        stdout: int = subprocess.PIPE,
        **spec: Any,
    ) -> None:
        self.shell = shell
        self.gate, self.pipe = shell.folder / "gate", shell.folder / "pipe"
        os.mkfifo(self.gate)
        os.mkfifo(self.pipe)
        shell.env |= {"GATE": str(self.gate), "PIPE": str(self.pipe), "GO": str(shell.folder / "go")}
        shell.write("train.py", BLOCKED)
        shell.manifest(
            **{
                "trainable": {"entrypoint": "train:Train"},
                "metric": "score",
                "mode": "max",
                "checkpoint": {"frequency": 1},
                **spec,
            }
        )
        self.running = shell.launch([*command, "run", "experiment.yaml", *options], stdout=stdout)
        with self.pipe.open() as pipe:
            self.trial_pid, self.fork_server_pid = map(int, pipe.read().split())
        # Results and checkpoints are sent by other threads: wait until those of the first two steps have arrived.
        checkpoints = 0 if spec.get("checkpoint") == {} else 2
        while self.journaled_results() < 2 or self.journaled_checkpoints() < checkpoints:
            assert self.running.process.poll() is None, self.running.text
            os.sched_yield()

    def journaled_results(self) -> int:
        """Return how many results are in the journal."""
        events = journaled(self.shell)
        return sum(len(event.results) for event in events if isinstance(event, ResultsReceived))

    def journaled_checkpoints(self) -> int:
        """Return how many checkpoints are in the journal."""
        events = journaled(self.shell)
        return sum(len(e.committed) for e in events if isinstance(e, (CheckpointsChanged, ResultsReceived)))

    def unblock(self) -> None:
        """Let later attempts through; the present one stays where it is."""
        self.shell.write("go", "")

    def open_gate(self) -> None:
        """Let the present attempt continue."""
        self.unblock()
        with self.gate.open("w"):
            pass

    def trial(self) -> dict[str, Any]:
        self.shell.assert_whole()
        (trial,) = self.shell.results()["trials"]
        rows = read_json_lines(Path(trial["path"], "result.json"))
        assert [row["score"] for row in rows] == [1, 2, 3, 4, 5]
        assert trial["status"] == "TERMINATED"
        return dict(trial)


def test_a_killed_trial_is_a_failure_and_is_retried(shell: Shell) -> None:
    blocked = Blocked(shell, failurePolicy={"maxFailures": 1})
    blocked.unblock()
    os.kill(blocked.trial_pid, signal.SIGKILL)
    event = blocked.running.wait_event("trial_retried")
    assert (event["data"]["attempt"], event["data"]["disruption"]) == (1, False)
    assert "SIGKILL" in event["message"]
    assert blocked.running.wait() == 0
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"], trial["disruptions"]) == (2, 1, 0)


def test_a_killed_fork_server_is_a_disruption_and_no_failure(shell: Shell) -> None:
    blocked = Blocked(shell, failurePolicy={"maxFailures": 0})
    blocked.unblock()
    os.kill(blocked.fork_server_pid, signal.SIGKILL)
    event = blocked.running.wait_event("trial_retried")
    assert (event["data"]["attempt"], event["data"]["disruption"]) == (1, True)
    assert event["message"].endswith("it resumes from the checkpoint of iteration 2")
    assert blocked.running.wait() == 0
    assert wait_gone(blocked.trial_pid, 5)
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"], trial["disruptions"]) == (2, 0, 1)


def test_a_parent_that_was_stopped_for_a_moment_continues(shell: Shell) -> None:
    blocked = Blocked(shell)
    blocked.running.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, blocked.running.pid, os.WSTOPPED)
    blocked.open_gate()
    assert not wait_gone(blocked.trial_pid, 0.3)  # its last results wait for the parent
    blocked.running.signal(signal.SIGCONT)
    assert blocked.running.wait() == 0
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"], trial["disruptions"]) == (1, 0, 0)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_keeps_the_state_and_no_step_is_lost(shell: Shell, signum: int) -> None:
    shell.env["UNTIL_PREEMPTED"] = "1"
    blocked = Blocked(shell, checkpoint={})
    blocked.running.signal(signum)
    assert blocked.running.wait() == 130
    shell.wait_until_all_gone()
    blocked.unblock()
    del shell.env["UNTIL_PREEMPTED"]
    (trial,) = shell.results()["trials"]
    assert trial["checkpoint_iteration"] == trial["iteration"] == 3
    assert shell.run("run", "experiment.yaml").returncode == 0
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"], trial["disruptions"]) == (2, 0, 0)


class TestClosedTerminal:
    def kept(self, blocked: Blocked) -> None:
        """The run has ended as after Ctrl-C: its trial took its last step and saved a checkpoint."""
        assert blocked.running.wait() == 130, blocked.running.text
        blocked.shell.wait_until_all_gone()
        (trial,) = blocked.shell.results()["trials"]
        assert trial["checkpoint_iteration"] == trial["iteration"] == 3
        assert "Traceback" not in blocked.running.text

    def test_keeps_the_state_of_a_run_with_a_table(self, shell: Shell) -> None:
        shell.env |= {"UNTIL_PREEMPTED": "1", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        primary, secondary = pty.openpty()
        try:
            blocked = Blocked(shell, options=(), stdout=secondary, checkpoint={})
        finally:
            os.close(secondary)
        os.close(primary)
        blocked.running.signal(signal.SIGHUP)
        self.kept(blocked)

    def test_is_one_request_though_its_signal_comes_twice(self, shell: Shell) -> None:
        shell.env["UNTIL_PREEMPTED"] = "1"
        blocked = Blocked(shell, checkpoint={})
        blocked.running.signal(signal.SIGHUP)
        blocked.running.wait_event("interrupted")
        blocked.running.signal(signal.SIGHUP)
        self.kept(blocked)

    def test_ends_nothing_below_nohup(self, shell: Shell) -> None:
        blocked = Blocked(shell, command=["nohup", *TRIALPOD])
        blocked.running.signal(signal.SIGHUP)
        blocked.open_gate()
        assert blocked.running.wait() == 0
        assert blocked.trial()["attempts"] == 1


def test_ctrl_c_twice_ends_at_once_and_is_no_failure(shell: Shell) -> None:
    blocked = Blocked(shell)
    blocked.running.signal(signal.SIGINT)
    blocked.running.wait_event("interrupted")
    blocked.running.signal(signal.SIGINT)
    assert blocked.running.wait(5) == 130
    shell.wait_until_all_gone()
    blocked.unblock()
    assert shell.run("run", "experiment.yaml").returncode == 0
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"]) == (2, 0)


def test_ctrl_c_reaches_trials_only_through_the_parent(shell: Shell) -> None:
    blocked = Blocked(shell)
    os.killpg(blocked.running.pid, signal.SIGINT)  # as a terminal does
    blocked.running.wait_event("interrupted")
    blocked.open_gate()
    assert blocked.running.wait() == 130
    assert "Traceback" not in blocked.running.text
    assert shell.results()["counts"]["ERROR"] == 0
    shell.assert_whole()


def test_the_journal_and_the_files_agree_after_a_kill(shell: Shell) -> None:
    blocked = Blocked(shell)
    blocked.running.signal(signal.SIGKILL)
    blocked.running.wait()
    shell.wait_until_all_gone()
    shell.assert_whole()
    assert blocked.journaled_results() == 2
    assert not any(isinstance(event, AttemptEnded) for event in journaled(shell))
    blocked.unblock()
    assert events_of(shell.run("run", "experiment.yaml", "--json").stdout)[-1]["state"] == "Succeeded"
    trial = blocked.trial()
    assert (trial["attempts"], trial["failures"], trial["disruptions"]) == (2, 0, 1)
