"""Trainables that do everything wrong: the user is told what, and the other trials continue."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_shell import Shell, read_json_lines

pytestmark = [pytest.mark.local, pytest.mark.slow]

BAD_FUNCTIONS = r"""
import ctypes, os, resource, signal, subprocess, sys, threading, time
from trialpod import tune

def train(config):
    return globals()[config["kind"]]()

def good():
    for i in range(3):
        tune.report({"score": i})

def returns_a_string():
    return "done"

def reports_nan():
    tune.report({"score": float("nan")})

def reports_100000_keys():
    tune.report({"score": 0.5, **{f"key_{i}": i for i in range(100_000)}})

def reports_nothing():
    pass

def forks():
    tune.report({"score": 1})
    child = os.fork()
    if child == 0:
        try:
            tune.report({"score": 999})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    tune.report({"score": 2})

def returns_from_a_fork():
    tune.report({"score": 1})
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        tune.report({"score": 2})

def leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
    tune.report({"score": 1})

def leaves_a_daemon():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    tune.report({"score": 1})

def exits_with_0():
    tune.report({"score": 1})
    sys.exit(0)

def exits_with_3():
    sys.exit(3)

def exits_with_words():
    sys.exit("there is no data")

def os_exits():
    os._exit(5)

def crashes():
    ctypes.string_at(0)

def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def is_killed_too():
    os.kill(os.getpid(), signal.SIGKILL)

def writes_too_much():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    with open("data.bin", "wb") as file:
        file.write(b"x" * (1 << 20))

def needs_too_much_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytes(1 << 31)

def raises_a_book():
    raise ValueError("x" * 5_000_000)

def raises_several_lines():
    raise ValueError("first\n\nthird \x1b[2J\r\n" + "more\n" * 1000)

def prints_megabytes():
    for _ in range(40_000):
        print("y" * 60)
    tune.report({"score": 1})

def prints_garbage():
    os.write(1, b"\xff\xfe\x00\x1b[2J\n")
    tune.report({"score": 1})

def swallows_everything():
    for i in range(300):
        try:
            tune.report({"score": 1})
        except BaseException:
            pass

def never_stops_swallowing():
    while True:
        try:
            tune.report({"score": 1})
        except BaseException:
            pass

def misspells_the_metric():
    tune.report({"scoer": 1})

def reports_text_as_metric():
    tune.report({"score": "good"})

def reports_an_object():
    tune.report({"score": 1, "model": object()})

def reports_a_list():
    tune.report([1])

def raises():
    tune.report({"score": 1})
    raise RuntimeError("the loss exploded")

def raises_an_interrupt():
    raise KeyboardInterrupt

def raises_what_cannot_be_shown():
    class Strange(Exception):
        def __str__(self):
            raise RuntimeError("no words")
    raise Strange

def recurses():
    recurses()

def raises_with_a_full_log():
    for descriptor in (1, 2):
        os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)
    raise RuntimeError("nobody can log this")

def closes_every_descriptor():
    os.closerange(0, 4096)
    tune.report({"score": 1})

def changes_the_directory():
    os.chdir("/")
    tune.report({"score": 1})

def removes_its_directory():
    import shutil
    shutil.rmtree(os.getcwd())
    tune.report({"score": 1})

def reports_a_missing_checkpoint():
    tune.report({"score": 1}, checkpoint=tune.Checkpoint.from_directory("nowhere"))
"""

# What the user reads of each kind; "" = the trial is fine.
SAID = {
    "good": "",
    "returns_a_string": "the function returned 'done' of type str; it may return a dict of metrics, one number",
    "reports_nan": "",
    "reports_100000_keys": "",
    "reports_nothing": "ended without reporting anything; call tune.report({'score': ...}) or return it",
    "forks": "",
    "returns_from_a_fork": "",
    "leaves_a_thread": "",
    "leaves_a_daemon": "",
    "exits_with_0": "",
    "exits_with_3": "SystemExit: the code exited with status 3",
    "exits_with_words": "there is no data",
    "os_exits": "the process ended with exit status 5 before the trial was over",
    "crashes": "the process crashed with SIGSEGV: an invalid memory access in native code",
    "is_killed": "the process was killed (SIGKILL); most often the machine ran out of memory: run fewer",
    "is_killed_too": "the process was killed (SIGKILL)",
    "writes_too_much": "OSError: [Errno 27] File too large (bad.py:",
    "needs_too_much_memory": "MemoryError (bad.py:",
    "raises_a_book": "ValueError: xxxxxxxx",
    "raises_several_lines": "ValueError: first",
    "prints_megabytes": "",
    "prints_garbage": "",
    "swallows_everything": "",
    "never_stops_swallowing": "",
    "misspells_the_metric": "the metric 'score' was never reported; reported metrics: scoer; did you mean 'scoer'?",
    "reports_text_as_metric": "the metric 'score' is not a number but 'good'",
    "reports_an_object": "",  # its text is kept
    "reports_a_list": "tune.report needs a dict of metrics, as in tune.report({'loss': 0.1}); it got list",
    "raises": "RuntimeError: the loss exploded (bad.py:",
    "raises_an_interrupt": "KeyboardInterrupt (bad.py:",
    "raises_what_cannot_be_shown": "Strange",
    "recurses": "RecursionError: maximum recursion depth exceeded",
    "raises_with_a_full_log": "RuntimeError: nobody can log this (bad.py:",
    "closes_every_descriptor": "the process ended with exit status 1 before the trial was over",
    "changes_the_directory": "",
    "removes_its_directory": "",
    "reports_a_missing_checkpoint": "CheckpointError: the checkpoint directory nowhere does not exist",
}


class BadRun:
    """One experiment with a trial of each kind, run once."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.write("bad.py", BAD_FUNCTIONS)
        shell.manifest(
            "bad",
            trainable={"entrypoint": "bad:train"},
            searchSpace={"kind": {"grid_search": list(SAID)}},
            metric="score",
            mode="max",
            stop={"training_iteration": 100},
            template={"spec": {"terminationGracePeriodSeconds": 1}},
        )
        self.done = shell.run("run", "experiment.yaml", "--max-concurrent", "2")
        self.directory = shell.folder / "trialpod-results" / "bad"
        self.results = shell.results(self.directory)
        self.trials: dict[str, dict[str, Any]] = {t["params"]["kind"]: t for t in self.results["trials"]}

    def log(self, kind: str) -> str:
        return Path(self.trials[kind]["path"], "log.txt").read_text(errors="replace")


@pytest.fixture(scope="module")
def bad(module_shell: Shell) -> BadRun:
    return BadRun(module_shell)


def test_every_other_trial_continues_and_the_exit_status_is_1(bad: BadRun) -> None:
    assert bad.done.returncode == 1, bad.done.stdout + bad.done.stderr
    assert set(bad.trials) == set(SAID)
    assert bad.trials["good"]["status"] == "TERMINATED"
    assert bad.results["state"] == "Succeeded"
    assert "Traceback" not in bad.done.stdout + bad.done.stderr


@pytest.mark.parametrize("kind", SAID)
def test_a_bad_trial_is_reported_in_words_that_help(bad: BadRun, kind: str) -> None:
    trial, said = bad.trials[kind], SAID[kind]
    assert trial["status"] == ("ERROR" if said else "TERMINATED"), trial
    assert said in trial["error"]
    assert "\n" not in trial["error"]
    assert len(trial["error"]) < 700
    if said:
        assert trial["failures"] <= 1


def test_output_lines_are_short(bad: BadRun) -> None:
    lines = (bad.done.stdout + bad.done.stderr).splitlines()
    assert max(map(len, lines)) < 900
    assert "\x1b" not in bad.done.stdout


def test_errors_of_the_same_kind_are_counted_together(bad: BadRun) -> None:
    killed = bad.trials["is_killed"]["error"]
    assert killed == bad.trials["is_killed_too"]["error"]
    assert "log.txt" not in killed  # the log is named on a line of its own
    text = bad.shell.run("results", str(bad.directory)).stdout
    assert f"{bad.trials['is_killed']['trial_id']} and 1 more trial: {killed}" in text


def test_results_names_each_error_with_its_log(bad: BadRun) -> None:
    text = bad.shell.run("results", str(bad.directory), "--failed").stdout
    assert "RuntimeError: the loss exploded" in text
    assert f"log: {bad.trials['raises']['path']}/log.txt" in text
    assert "good" not in text.partition("\n\n")[2].partition("\n\n")[0]


def test_what_a_trial_printed_is_in_its_log(bad: BadRun) -> None:
    assert len(bad.log("prints_megabytes")) == 40_000 * 61
    assert "\x1b[2J" in bad.log("prints_garbage")
    assert "RuntimeError: the loss exploded" in bad.log("raises")
    assert 'File "' in Path(bad.trials["raises"]["path"], "error.txt").read_text()


def test_results_that_were_reported_before_the_failure_are_kept(bad: BadRun) -> None:
    trial = bad.trials["raises"]
    assert trial["value"] == 1.0
    rows = read_json_lines(Path(trial["path"], "result.json"))
    assert [row["score"] for row in rows] == [1]


def test_results_under_a_misspelt_name_are_kept(bad: BadRun) -> None:
    rows = read_json_lines(Path(bad.trials["misspells_the_metric"]["path"], "result.json"))
    assert [row["scoer"] for row in rows] == [1]


def test_a_forked_child_cannot_report_for_its_trial(bad: BadRun) -> None:
    for kind in ("forks", "returns_from_a_fork"):
        rows = read_json_lines(Path(bad.trials[kind]["path"], "result.json"))
        assert [row["score"] for row in rows] == [1, 2], kind


def test_a_trial_that_swallows_its_stop_is_over_nevertheless(bad: BadRun) -> None:
    for kind in ("swallows_everything", "never_stops_swallowing"):
        assert bad.trials[kind]["iteration"] == 100, kind
    assert len(read_json_lines(Path(bad.trials["never_stops_swallowing"]["path"], "result.json"))) == 100


def test_a_hundred_thousand_keys_are_kept(bad: BadRun) -> None:
    (row,) = read_json_lines(Path(bad.trials["reports_100000_keys"]["path"], "result.json"))
    assert row["key_99999"] == 99_999


def test_nan_is_never_the_best(bad: BadRun) -> None:
    best = json.loads(bad.shell.run("best", str(bad.directory), "--json").stdout)
    assert best["params"]["kind"] in ("forks", "returns_from_a_fork", "good")
    assert best["value"] == 2


def test_nothing_that_the_trials_started_is_left(bad: BadRun) -> None:
    bad.shell.wait_until_all_gone()


def one_bad(shell: Shell, source: str, **spec: Any) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run an experiment on the given train.py; return what was said and what `trialpod results` says."""
    shell.write("train.py", source)
    shell.manifest(**{"metric": "score", "mode": "max", "numSamples": 3, **spec})
    done = shell.run("run", "experiment.yaml")
    return done, shell.results()


@pytest.mark.parametrize(
    ("entrypoint", "source", "said"),
    [
        ("train:train", "import nowhere_to_be_found", "No module named 'nowhere_to_be_found'; install"),
        ("train:train", "raise RuntimeError('no data')", "RuntimeError: no data (train.py:1"),
        ("train:train", "def trian(config): ...", "did you mean 'trian'?"),
        ("trian:train", "def train(config): ...", "trian"),
        ("train:train", "train = 3", "int"),
        ("train:train", "def train(): ...", "cannot be tuned"),
        ("train:train", "async def train(config): ...", "coroutine"),
        ("train:train", "def train(config):\n  x = = 1", "has a syntax error in train.py, line 2"),
        ("train:train", "import os; os._exit(7)", "exit status 7"),
        ("train:train", "import sys; sys.exit('usage: train.py FILE')", "usage: train.py FILE"),
    ],
)
def test_code_that_cannot_be_started_ends_the_experiment_early(
    shell: Shell, entrypoint: str, source: str, said: str
) -> None:
    done, results = one_bad(shell, source, trainable={"entrypoint": entrypoint}, numSamples=50)
    assert done.returncode == 1
    assert said in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    if "os._exit" not in source:
        assert len(results["trials"]) < 10
        assert results["state"] == "Failed"
        assert "the first 3 trials failed before their first result" in done.stdout


HOOKS = {
    "setup": "RuntimeError: bad setup (train.py:",
    "step": "RuntimeError: bad step (train.py:",
    "save_checkpoint": "RuntimeError: bad save_checkpoint (train.py:",
    "step_returns_none": "step() returned None",
    "step_returns_text": "step() returned 'good' of type str",
    "save_returns_number": "save_checkpoint",
    "cleanup": "",
    "init": "",
    "good": "",
}
HOOKED = """
from trialpod import tune

class Train(tune.Trainable):
    def fail(self, hook):
        if self.kind == hook:
            raise RuntimeError(f"bad {hook}")
    def setup(self, config):
        self.kind = config["kind"]
        self.fail("setup")
    def step(self):
        self.fail("step")
        if self.kind == "step_returns_none":
            return None
        if self.kind == "step_returns_text":
            return "good"
        return {"score": self.iteration}
    def save_checkpoint(self, folder):
        self.fail("save_checkpoint")
        if self.kind == "save_returns_number":
            return 3
        return {"n": 1}
    def load_checkpoint(self, state):
        self.fail("load_checkpoint")
    def cleanup(self):
        self.fail("cleanup")
"""


def test_each_hook_of_a_class_that_fails_is_named(shell: Shell) -> None:
    done, results = one_bad(
        shell,
        HOOKED,
        trainable={"entrypoint": "train:Train"},
        searchSpace={"kind": {"grid_search": list(HOOKS)}},
        numSamples=1,
        stop={"training_iteration": 2},
        checkpoint={"frequency": 1},
    )
    assert done.returncode == 1
    trials = {trial["params"]["kind"]: trial for trial in results["trials"]}
    for kind, said in HOOKS.items():
        assert trials[kind]["status"] == ("ERROR" if said else "TERMINATED"), (kind, trials[kind])
        assert said in trials[kind]["error"], kind
    assert "bad cleanup" in Path(trials["cleanup"]["path"], "log.txt").read_text()


def test_a_load_checkpoint_that_fails_fails_the_retry(shell: Shell) -> None:
    source = """
    from trialpod import tune
    class Train(tune.Trainable):
        def step(self):
            if self.iteration == 2:
                raise RuntimeError("bad luck")
            return {"score": self.iteration}
        def save_checkpoint(self, folder):
            return {"n": 1}
        def load_checkpoint(self, state):
            raise RuntimeError("bad load_checkpoint")
    """
    done, results = one_bad(
        shell,
        source,
        trainable={"entrypoint": "train:Train"},
        numSamples=1,
        checkpoint={"frequency": 1},
        failurePolicy={"maxFailures": 1},
    )
    assert done.returncode == 1
    (trial,) = results["trials"]
    assert (trial["attempts"], trial["failures"]) == (2, 2)
    assert "bad load_checkpoint" in trial["error"]
    assert "attempt 1 failed (retry 1 (of 1): RuntimeError: bad luck" in done.stdout
    assert "it resumes from the checkpoint of iteration 2" in done.stdout


def test_unreported_metric_ends_experiment_with_suggestion(shell: Shell) -> None:
    source = """
    from trialpod import tune
    def train(config):
        tune.report({"accuracy": 0.5})
    """
    done, results = one_bad(shell, source, metric="acuracy", numSamples=50)
    assert done.returncode == 1
    assert results["state"] == "Failed"
    assert len(results["trials"]) < 10
    assert (
        "the metric 'acuracy' was never reported; reported metrics: accuracy; did you mean 'accuracy'?" in done.stdout
    )
    best = shell.run("best", "trialpod-results/exp", "--metric", "accuracy", "--mode", "max", "--json")
    assert json.loads(best.stdout)["value"] == 0.5


def test_an_empty_search_space_runs_the_trainable_as_it_is(shell: Shell) -> None:
    source = """
    from trialpod import tune
    def train(config):
        assert config == {}
        tune.report({"score": 1})
    """
    done, results = one_bad(shell, source, searchSpace={}, numSamples=2)
    assert done.returncode == 0, done.stdout
    assert [trial["params"] for trial in results["trials"]] == [{}, {}]
    assert "best parameters: it has none" in done.stdout


def test_full_disk_ends_the_run_which_resumes_later(shell: Shell) -> None:
    disk = shell.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        shell.write(
            "train.py",
            """
            import os
            from trialpod import tune
            def train(config):
                for i in range(50):
                    tune.report({"score": i, "text": os.urandom(50_000).hex()})
            """,
        )
        shell.manifest(metric="score", mode="max", numSamples=4)
        full = shell.run("run", "experiment.yaml", "--storage", "disk")
        assert full.returncode == 1
        assert "no space left on the device" in full.stderr, full.stderr
        assert "free some space" in full.stderr
        assert "Traceback" not in full.stderr
        assert len(full.stderr.splitlines()) < 5
        shell.wait_until_all_gone()
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        again = shell.run("run", "experiment.yaml", "--storage", "disk")
        assert again.returncode == 0, again.stdout + again.stderr
        for trial in shell.results("disk/exp")["trials"]:
            assert trial["failures"] == 0
            rows = read_json_lines(Path(trial["path"], "result.json"))
            assert [row["score"] for row in rows][-50:] == list(range(50))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_million_point_grid_starts_at_once_and_resumes(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        from trialpod import tune
        def train(config):
            tune.report({"score": config["a"]})
        """,
    )
    digits = list(range(100))
    space = {name: {"grid_search": digits} for name in ("a", "b", "c")}
    shell.manifest(metric="score", mode="max", searchSpace=space)
    before: dict[str, int] = {}
    for seen in (2, 4):
        running = shell.start("run", "experiment.yaml", "--json")
        assert running.wait_event("started")["total"] == 1_000_000
        for _ in range(2):
            running.wait_event("trial_ended")
        running.signal(signal.SIGINT)
        assert running.wait() == 130
        results = shell.results()
        assert results["total"] == 1_000_000
        assert results["counts"]["TERMINATED"] >= seen
        assert results["counts"]["ERROR"] == 0
        attempts = {t["trial_id"]: t["attempts"] for t in results["trials"] if t["status"] == "TERMINATED"}
        assert {key: attempts[key] for key in before} == before  # none that had finished ran again
        before = attempts
    points = [tuple(trial["params"].values()) for trial in results["trials"]]
    assert len(set(points)) == len(points)
