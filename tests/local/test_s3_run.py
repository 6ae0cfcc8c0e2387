"""Experiments that are kept in a bucket, on a real MinIO server: killed, fenced, cut off, and resumed elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_shell import Running, Shell, read_json_lines
from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer, environment_keys

from trialpod.storage.base import Storage
from trialpod.storage.s3.routes import forget
from trialpod.tune.result import Result
from trialpod_operator.commands.checkpoints import listed
from trialpod_operator.view.reading import read_view

pytestmark = [pytest.mark.local, pytest.mark.once]

TRAIN = """
import json, os, pathlib, tempfile, time
from trialpod import tune

def wait_for(name):
    deadline = time.monotonic() + 90
    while not os.path.exists(os.path.join(os.environ["GATES"], name)):
        assert time.monotonic() < deadline, f"the gate {name} was never opened"
        time.sleep(0.01)

def train(config):
    done, total = 0, 0.0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done, total = json.loads(pathlib.Path(folder, "state.json").read_text())
    with open(os.environ["GATES"] + "/starts", "a") as notes:
        notes.write(json.dumps({"done": done}) + "\\n")
    while done < 6:
        if done == 3:
            wait_for("half")
        done, total = done + 1, total + config["x"]
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "state.json").write_text(json.dumps([done, total]))
            tune.report({"score": total}, checkpoint=tune.Checkpoint.from_directory(folder))
"""
SCRIPT = """
import json, os, sys
from train import train
from trialpod import tune
from trialpod.tune import Tuner, TuneConfig, RunConfig

def told(**facts):
    print("told", json.dumps(facts, default=str))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def work(shell: Shell, server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell whose commands reach the server, as this process does."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    gates = shell.folder / "gates"
    gates.mkdir()
    shell.env |= {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "GATES": str(gates),
        "HOME": str(shell.folder / "home"),
    }
    shell.write("train.py", TRAIN)
    with environment_keys():
        yield shell


def open_gate(work: Shell) -> None:
    (work.folder / "gates" / "half").touch()


def starts(work: Shell) -> list[int]:
    return [note["done"] for note in read_json_lines(work.folder / "gates" / "starts")]


def eventually(what: str, holds: Callable[[], bool], running: Running, timeout_s: float = 20.0) -> None:
    """Return when something is true in the bucket, which tells nobody when it changes."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline or running.process.poll() is not None:
            pytest.fail(f"{what} did not come true; the command said:\n{running.text}")
        time.sleep(0.1)


def iterations(uri: str) -> list[int]:
    """Return how far the trials are, by the bucket alone; [] when it holds no experiment yet."""
    try:
        return [row.iteration for row in read_view(uri, rows=None).rows]
    except ValueError:
        return []


def saved_iterations(uri: str) -> list[int | None]:
    """Return the iterations of the newest checkpoints that the journal in the bucket knows: it is copied later."""
    return [row.checkpoint_iteration for row in read_view(uri, rows=None).rows]


def half_done(uri: str, trials: int) -> Callable[[], bool]:
    """Return the question whether the bucket knows of three results and three checkpoints of each trial."""

    def holds() -> bool:
        here = iterations(uri) == [3] * trials and len(listed(uri, verify=False)) == 3 * trials
        return here and saved_iterations(uri) == [3] * trials

    return holds


def steps_of_events(data: bytes) -> list[int]:
    """Return the steps in an event file whose steps are below 128: the byte behind the time."""
    steps, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        payload = data[at + 12 : at + 12 + length]
        if payload[9:10] == b"\x10":
            steps.append(payload[10])
        at += length + 16
    return steps


def complete(storage: Storage, trials: int) -> None:
    """Check that the bucket has each result of each trial once, in all its files."""
    results = [key for key in storage.list() if key.endswith("/result.json")]
    assert len(results) == trials
    for key in results:
        rows = [json.loads(line) for line in storage.read(key).splitlines()]
        assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
        folder = key.rpartition("/")[0]
        assert len(storage.read(f"{folder}/progress.csv").splitlines()) == 7
        (events,) = [name for name in storage.list(folder) if "/events.out.tfevents." in name]
        assert steps_of_events(storage.read(events)) == [1, 2, 3, 4, 5, 6]


def test_kill_9_and_a_lost_disk_lose_nothing_that_the_bucket_has(work: Shell, server: MinioServer) -> None:
    uri = "s3://runs/kill"
    server.storage(uri)
    work.manifest(numSamples=2)
    running = work.start("run", "experiment.yaml", "--storage", uri, "--cpus", "2", "--json")
    eventually("half of it", half_done(f"{uri}/exp", 2), running)
    running.signal(signal.SIGKILL)
    running.wait()
    work.wait_until_all_gone()
    work.assert_whole(f"{uri}/exp")
    shutil.rmtree(work.folder / "trialpod-results")
    open_gate(work)

    again = work.run("run", "experiment.yaml", "--storage", uri, "--cpus", "2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert sorted(starts(work)) == [0, 0, 3, 3]
    complete(server.storage(f"{uri}/exp"), 2)
    work.assert_whole(f"{uri}/exp")
    work.assert_whole()
    assert all(one.verified and one.problem is None for one in listed(f"{uri}/exp", verify=True))


def test_lost_attempt_unknown_to_bucket_is_no_failure(work: Shell, server: MinioServer) -> None:
    uri = "s3://runs/ahead"
    server.storage(uri)
    work.manifest(numSamples=1, failurePolicy={"maxFailures": 0})
    running = work.start("run", "experiment.yaml", "--storage", uri, "--cpus", "2", "--json")
    eventually("half of it", half_done(f"{uri}/exp", 1), running)
    running.signal(signal.SIGKILL)
    running.wait()
    work.wait_until_all_gone()
    shutil.rmtree(work.folder / "trialpod-results")
    storage = server.storage(f"{uri}/exp")
    folder = next(key for key in storage.list() if "/checkpoint_" in key).partition("/")[0]
    # Its third attempt had begun a checkpoint when it was lost, and the journal in the bucket knows of the first.
    claim = f"{folder}/checkpoint_000009/.trialpod-claim"
    storage.write_new(claim, json.dumps({"attempt": 3, "token": "lost"}).encode())
    open_gate(work)

    again = work.run("run", "experiment.yaml", "--storage", uri, "--cpus", "2")
    assert again.returncode == 0, again.stdout + again.stderr
    complete(storage, 1)
    (row,) = read_view(f"{uri}/exp", rows=None).rows
    assert (row.failures, row.attempts) == (0, 3)
    assert claim not in storage.list()
    work.assert_whole(f"{uri}/exp")


@pytest.mark.parametrize("how", ["killed", pytest.param("interrupted", marks=pytest.mark.slow)])
def test_run_killed_during_final_copy_resumes(work: Shell, server: MinioServer, how: str) -> None:
    """Its last snapshot has replaced records of which the bucket has a part only."""
    uri = f"s3://runs/rest-{how}"
    server.storage(uri)
    work.write(
        "train.py",
        TRAIN.partition("def train")[0]
        + """
def train(config):
    with open(os.environ["GATES"] + "/starts", "a") as notes:
        notes.write(json.dumps({"done": 0}) + "\\n")
    for number in range(6):
        if number == 3:
            wait_for("half")
        tune.report({"score": number})
""",
    )
    work.manifest(numSamples=2)
    running = work.start("run", "experiment.yaml", "--storage", uri, "--cpus", "2", "--json")
    eventually("half of it", lambda: iterations(f"{uri}/exp") == [3, 3], running)
    server.kill()
    try:
        open_gate(work)
        snapshot = work.folder / "trialpod-results" / "exp" / ".trialpod" / "journal" / "00000002.snapshot"
        eventually("the last snapshot", snapshot.exists, running)
        if how == "killed":
            running.signal(signal.SIGKILL)
            running.wait()
        else:
            running.signal(signal.SIGINT)
            running.wait_event("interrupted")
            running.signal(signal.SIGINT)
            assert running.wait(5) == 130
            assert f"not everything is copied to {uri}/exp yet; run again to copy the rest" in running.text
            assert "Traceback" not in running.text
        work.wait_until_all_gone()
    finally:
        server.start()

    again = work.run("run", "experiment.yaml", "--storage", uri, "--cpus", "2")
    assert again.returncode == 0, again.stdout + again.stderr
    view = read_view(f"{uri}/exp", rows=None)
    assert [(row.status, row.iteration, row.attempts) for row in view.rows] == [("TERMINATED", 6, 1)] * 2
    assert starts(work) == [0, 0]
    work.assert_whole(f"{uri}/exp")


def test_of_two_runs_of_one_experiment_the_second_is_refused(work: Shell, server: MinioServer) -> None:
    uri = "s3://runs/two"
    server.storage(uri)
    work.manifest(numSamples=1)
    first = work.start("run", "experiment.yaml", "--storage", uri)
    eventually("half of it", half_done(f"{uri}/exp", 1), first)
    other = work.folder / "other"
    other.mkdir()
    second = work.run("run", "../experiment.yaml", "--storage", uri, cwd=other)
    assert second.returncode == 1, second.stdout + second.stderr
    assert f"process {first.pid} on " in second.stderr
    assert "is running this experiment" in second.stderr
    open_gate(work)
    assert first.wait() == 0, first.text
    assert starts(work) == [0]
    complete(server.storage(f"{uri}/exp"), 1)
    work.assert_whole(f"{uri}/exp")


@pytest.mark.slow
def test_uri_with_endpoint_is_read_without_the_variable(
    work: Shell, server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.storage("s3://named/by-uri")
    work.manifest(numSamples=1, metric="score", mode="max")
    open_gate(work)
    for variables in (work.env.pop, monkeypatch.delenv):
        variables("AWS_ENDPOINT_URL")
    named = f"?endpoint={server.endpoint}"
    done = work.run("run", "experiment.yaml", "--storage", f"s3://named/by-uri{named}")
    assert done.returncode == 0, done.stdout + done.stderr
    place = f"s3://named/by-uri/exp{named}"
    for command in (
        ["results", place],
        ["best", place],
        ["fsck", place, "--verify"],
        ["checkpoints", place],
        ["download", place, "copies"],
    ):
        assert work.run(*command).returncode == 0, command
    trial = json.loads(work.run("best", place, "--json").stdout)
    found = Result.from_path(f"s3://named/by-uri/exp/{Path(trial['path']).name}{named}")
    assert found.metrics is not None
    assert found.metrics["training_iteration"] == 6
    forget()


@pytest.mark.slow
def test_a_missing_bucket_is_named_and_made_on_demand(work: Shell, server: MinioServer) -> None:
    open_gate(work)
    work.manifest(numSamples=1, storage={"uri": "s3://not-there-yet/x"})
    refused = work.run("run", "experiment.yaml")
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the bucket does not exist" in refused.stderr
    assert "createBucket: true" in refused.stderr
    assert starts(work) == []
    made = work.run("run", "experiment.yaml", "--set", "spec.storage.createBucket=true")
    assert made.returncode == 0, made.stdout + made.stderr
    complete(server.storage("s3://not-there-yet/x/exp"), 1)
    work.assert_whole("s3://not-there-yet/x/exp")


@pytest.mark.slow
def test_a_store_that_is_away_for_a_while_stops_nothing(work: Shell, server: MinioServer) -> None:
    uri = "s3://runs/away"
    server.storage(uri)
    work.manifest(numSamples=1)
    running = work.start("run", "experiment.yaml", "--storage", uri, "--json")
    eventually("half of it", half_done(f"{uri}/exp", 1), running)
    server.kill()
    try:
        open_gate(work)
        running.wait_event("warning", lambda event: "cannot be written at the moment" in event["message"])
    finally:
        server.start()
    assert running.wait() == 0, running.text
    assert starts(work) == [0]
    complete(server.storage(f"{uri}/exp"), 1)
    work.assert_whole(f"{uri}/exp")
    found = listed(f"{uri}/exp", verify=True)
    assert [(one.info.index, one.problem) for one in found] == [(index, None) for index in range(6)]


def test_tuner_resumes_when_nothing_was_copied(work: Shell, server: MinioServer) -> None:
    open_gate(work)
    uri = "s3://tuners/at-once"
    storage = server.storage(uri)
    work.write(
        "script.py",
        SCRIPT
        + f"""
if Tuner.can_restore({uri + "/exp"!r}):
    told(restored=True)
    Tuner.restore({uri + "/exp"!r}, train).fit()
else:
    Tuner(train, param_space={{"x": tune.grid_search([1.0, 2.0])}},
        tune_config=TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(name="exp", storage_path={uri!r}, verbose=0)).fit()
""",
    )
    first = work.execute([sys.executable, "script.py"])
    assert first.returncode == 0, first.stdout + first.stderr
    # What a run leaves that ends in its first second: the directory, with nothing of the journal.
    shutil.rmtree(work.folder / "home" / "trialpod-results" / "exp" / ".trialpod" / "journal")
    storage.delete_tree("exp")
    again = work.execute([sys.executable, "script.py"])
    assert again.returncode == 0, again.stdout + again.stderr
    assert '{"restored": true}' in again.stdout
    complete(server.storage(f"{uri}/exp"), 2)


@pytest.mark.slow
def test_tuner_in_a_bucket_is_restored_elsewhere(work: Shell, server: MinioServer) -> None:
    open_gate(work)
    uri = "s3://tuners/some/prefix"
    server.storage(uri)
    work.write(
        "script.py",
        SCRIPT
        + f"""
tuner = Tuner(train, param_space={{"x": tune.grid_search([1.0, 2.0])}},
    tune_config=TuneConfig(metric="score", mode="max"),
    run_config=RunConfig(name="exp", storage_path={uri!r}, verbose=0))
best = tuner.fit().get_best_result()
with best.checkpoint.as_directory() as folder:
    state = json.load(open(os.path.join(folder, "state.json")))
told(state=state, repr=repr(best.checkpoint), path=best.path, local=best.local_path,
     rows=len(best.metrics_dataframe), there=Tuner.can_restore({uri + "/exp"!r}),
     nowhere=Tuner.can_restore({uri + "/other"!r}), saved=len(best.best_checkpoints),
     copy=os.listdir(best.best_checkpoints[0][0].to_directory("copy")))
""",
    )
    done = work.python("script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.partition("told ")[2])
    assert facts["state"] == [6, 12.0]
    assert facts["repr"].startswith(f"Checkpoint(uri='{uri}/exp/train_")
    assert facts["path"].startswith(f"{uri}/exp/train_")
    assert facts["local"].startswith(str(work.folder / "home" / "trialpod-results" / "exp"))
    assert facts["rows"] == 6
    assert (facts["there"], facts["nowhere"], facts["saved"], facts["copy"]) == (True, False, 6, ["state.json"])
    complete(server.storage(f"{uri}/exp"), 2)

    again = work.python("script.py")
    assert again.returncode == 0, again.stderr  # it continues, and has nothing left to do
    work.env["TRIALPOD_IF_EXISTS"] = "fresh"
    fresh = work.python("script.py")
    assert fresh.returncode == 0, fresh.stderr
    assert f"the results that were in {uri}/exp are in {uri}/exp.1 now" in fresh.stderr
    for name in ("exp", "exp.1"):
        complete(server.storage(f"{uri}/{name}"), 2)
        work.assert_whole(f"{uri}/{name}")
    del work.env["TRIALPOD_IF_EXISTS"]

    work.env["TRIALPOD_WORK_DIR"] = str(work.folder / "elsewhere")
    work.write(
        "restored.py",
        SCRIPT
        + f"""
tuner = Tuner.restore({uri + "/exp"!r}, train)
before = tuner.get_results()
grid = tuner.fit()
told(path=before.get_best_result().path, rows=len(before.get_best_result("score", "max", "all").metrics_dataframe),
     score=before.get_best_result().metrics["score"], ended=grid.num_terminated, place=grid.experiment_path,
     local=grid.local_path)
""",
    )
    done = work.python("restored.py")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.partition("told ")[2])
    assert facts["path"].startswith(f"{uri}/exp/train_")
    assert (facts["rows"], facts["score"], facts["ended"]) == (6, 12.0, 2)
    assert (facts["place"], facts["local"]) == (f"{uri}/exp", str(work.folder / "elsewhere" / "exp"))
    assert starts(work) == [0, 0, 0, 0]  # two in each run, none in the restored one
    work.assert_whole(f"{uri}/exp")

    result = Result.from_path(facts["path"])
    assert result.metrics is not None
    assert result.metrics["score"] == 12.0
    assert result.checkpoint is not None
    assert json.loads(Path(result.checkpoint.path, "state.json").read_text()) == [6, 12.0]


@pytest.mark.slow
def test_run_gives_a_script_its_bucket(work: Shell, server: MinioServer) -> None:
    open_gate(work)
    uri = "s3://tuners/script"
    server.storage(uri)
    work.write("search.py", SCRIPT + "Tuner(train, param_space={'x': 1.0}).fit()\n")
    for _ in range(2):  # the second continues, with nothing left to do, though the disk is lost
        done = work.run("run", "search.py", "--storage", uri)
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(work.folder / "trialpod-results")
    assert starts(work) == [0]
    complete(server.storage(f"{uri}/search"), 1)
    work.assert_whole(f"{uri}/search")


def test_temporary_files_of_killed_trials_are_removed(work: Shell, server: MinioServer) -> None:
    server.storage("s3://runs/left")
    with tempfile.TemporaryDirectory(prefix="tp") as temporary:  # a short path: it holds a socket
        work.env["TMPDIR"] = temporary
        work.write(
            "killed.py",
            """
            import json, os, pathlib, signal
            from trialpod import tune

            class Train(tune.Trainable):
                def step(self):
                    if self.iteration == 2:
                        with open(os.environ["GATES"] + "/left", "w") as left:
                            left.write(json.dumps(os.listdir(os.environ["TMPDIR"])))
                        os.kill(os.getpid(), signal.SIGKILL)
                    return {"score": 1.0}
                def save_checkpoint(self, folder):
                    pathlib.Path(folder, "weights").write_bytes(bytes(1000))
                def load_checkpoint(self, folder):
                    pass
            """,
        )
        work.manifest(
            trainable={"entrypoint": "killed:Train"},
            metric="score",
            mode="max",
            numSamples=1,
            checkpoint={"frequency": 1},
        )
        ended = work.run("run", "experiment.yaml", "--storage", "s3://runs/left", "-q")
        assert ended.returncode == 1, ended.stdout + ended.stderr
        left = json.loads((work.folder / "gates" / "left").read_text())
        assert any(name.startswith("trialpod-checkpoints-") for name in left)
        assert os.listdir(temporary) == []


ARTIFACTS = """
import os, pathlib
from trialpod import tune

def train(config):
    pathlib.Path("plots").mkdir()
    for step in range(1, 4):
        pathlib.Path("plots", "last.txt").write_text(f"step {step}")
        pathlib.Path(f"note-{step}.txt").write_text(str(config["x"]))
        tune.report({"score": step})
    os.symlink("/etc/hostname", "link")
    pathlib.Path("end.bin").write_bytes(b"x" * 100_000)
    if config["x"] == 2:
        raise ValueError("on purpose")

if __name__ == "__main__":
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(
            name="files", storage_path="s3://files/runs", verbose=0, sync_config=tune.SyncConfig(sync_artifacts=True)
        ),
    )
    print([bool(result.error) for result in tuner.fit()])
"""


def test_what_trials_write_is_kept_in_the_bucket(work: Shell, server: MinioServer) -> None:
    work.write("files.py", ARTIFACTS)
    server.storage("s3://files/runs")
    assert "[False, True]" in work.python("files.py").stdout
    storage = server.storage("s3://files/runs/files")
    trials = [name for name in storage.folders() if name.startswith("train_")]
    assert len(trials) == 2
    for name in trials:
        trial = storage.sub(name)
        ours = {"params.json", "result.json", "progress.csv", "log.txt", "error.txt", "error.pkl"}
        own = {key for key in trial.list() if key not in ours and not key.startswith("events.out.")}
        assert own == {"plots/last.txt", "note-1.txt", "note-2.txt", "note-3.txt", "end.bin"}
        assert trial.read("plots/last.txt") == b"step 3"
        assert json.loads(trial.read("result.json").splitlines()[-1])["score"] == 3
