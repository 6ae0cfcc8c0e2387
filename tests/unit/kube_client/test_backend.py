"""The backend against a stand-in for the API server and a folder for the bucket. The real ones: tests/cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_server import ApiServer, condition_of, trial_object

import trialpod.kubernetes
from trialpod import tune
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.kubernetes import KubernetesBackend
from trialpod.protocol.packed import read_packed
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.backends import get_backend
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod_operator.kube_client import backend as module

Json = dict[str, Any]
SUCCEEDED = [condition_of("Ready", "True", "Succeeded"), condition_of("Succeeded", "True", "Succeeded", "all done")]


def train(config: Json) -> None:
    tune.report({"loss": config["lr"]})


class World:
    """An API server, a bucket, and an operator that is played by a list of statuses, one for each look."""

    def __init__(self, folder: Path) -> None:
        self.server = ApiServer()
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.statuses: list[Json | None] = []
        self.server.before_get = self._operate
        self.clock = itertools.count(1_800_000_000.0, 0.5)
        self.slept = 0

    def storage(self, uri: str) -> DirectoryStorage:
        place = self.bucket / uri.removeprefix("s3://tune/")
        place.mkdir(parents=True, exist_ok=True)
        return DirectoryStorage(place)

    def _operate(self, resource: str, name: str) -> None:
        if resource == "tuneexperiments" and (resource, name) in self.server.objects and self.statuses:
            status = self.statuses.pop(0)
            if status is None:
                del self.server.objects[resource, name]
            else:
                item = self.server.experiment(name)
                if "retried" in status:
                    status = {**status, "retried": item["metadata"]["annotations"].get("trialpod.dev/retry")}
                item["status"] = {"observedGeneration": item["metadata"]["generation"], **status}

    def backend(self, **options: Any) -> KubernetesBackend:
        def sleep(_seconds: float) -> None:
            self.slept += 1
            assert self.slept < 2000, "it waits forever"

        given = {"credentials_secret": "minio", "environ": {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, **options}
        return KubernetesBackend(**given, clock=lambda: next(self.clock), sleep=sleep)

    def tuner(self, name: str = "climb", *, backend: Any = None, **tuning: Any) -> tune.Tuner:
        settings = {"metric": "loss", "mode": "min", "num_samples": 2, **tuning}
        return tune.Tuner(
            train,
            param_space={"lr": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(**settings),
            run_config=tune.RunConfig(name=name, storage_path="s3://tune/runs"),
            backend=backend or self.backend(),
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(made.server.kubeconfig(tmp_path)))
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(module, "open_storage", made.storage)
    monkeypatch.setattr(
        KubernetesBackend, "load", lambda self, path: ExperimentOutcome(name="climb", path=path, state="Succeeded")
    )
    yield made
    made.server.close()


def test_code_is_in_the_bucket_and_named_with_checksum(world: World, tmp_path: Path) -> None:
    world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
    world.tuner().fit()
    spec = world.server.experiment("climb")["spec"]
    reference = spec["trainable"]["pickle"]
    key = reference["uri"].removeprefix("s3://tune/")
    data = (world.bucket / key).read_bytes()
    assert hashlib.sha256(data).hexdigest() == reference["sha256"]
    assert read_packed(data)[0]["name"] == "train"
    assert spec["storage"] == {"uri": "s3://tune/runs", "endpoint": "http://minio:9000", "credentialsSecret": "minio"}
    assert (world.bucket / "runs/climb/tuner.pkl").exists()
    assert not (tmp_path / "work" / "climb").exists()


def test_a_command_is_a_command_in_the_manifest(world: World) -> None:
    world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
    given = world.tuner()
    tune.Tuner(
        tune.with_resources(tune.Command(["python", "train.py", "--lr={lr}"], grace_s=90), {"cpu": 2}),
        param_space={"lr": tune.uniform(0, 1)},
        tune_config=given.tune_config,
        run_config=given.run_config,
        backend=world.backend(),
    ).fit()
    spec = world.server.experiment("climb")["spec"]
    assert spec["trainable"] == {"command": ["python", "train.py", "--lr={lr}"], "gracePeriod": 90}
    assert spec["resources"] == {"cpu": "2"}


def test_large_parameters_are_stored_once_in_the_bucket(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialpod.tune.registry._trainables", {})
    world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
    tuner = world.tuner()
    bound = tune.with_parameters(lambda config, a, b: None, a=b"x" * 100_000, b=b"x" * 100_000)
    tune.Tuner(
        bound,
        tune_config=tuner.tune_config,
        run_config=tuner.run_config,
        param_space={"lr": 1},
        backend=world.backend(),
    ).fit()
    ours = world.bucket / "runs/climb/.trialpod"
    (stored,) = (ours / "objects").iterdir()
    (code,) = ours.glob("trainable-*.pkl")
    assert read_packed(code.read_bytes())[0]["objects"] == [stored.name]
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == stored.name
    assert code.stat().st_size < 10_000
    assert not (tmp_path / "work" / "climb").exists()


def test_progress_is_reported_from_the_status_and_the_trials(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def trials(number: int, state: str, **status: Any) -> None:
        world.server.put("tunetrials", trial_object("climb", number, state, nodeName="a", **status))

    looks = iter(
        [
            lambda: trials(0, "RUNNING"),
            lambda: trials(0, "TERMINATED", value="0.25"),
            lambda: trials(1, "ERROR", message="ran out of memory", failures=1),
        ]
    )
    operate = world.server.before_get

    def also_trials(resource: str, name: str) -> None:
        operate(resource, name)
        if resource == "tunetrials":
            next(looks, lambda: None)()

    world.server.before_get = also_trials
    running = {"conditions": [condition_of("Ready", "True", "Running")], "trials": {"total": 2, "running": 1}}
    world.statuses = [*[running] * 6, {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2, "error": 1}}]
    world.tuner().fit()
    shown = capsys.readouterr().out
    assert "climb: 2 trials for the minimum of loss" in shown
    assert "d75de_00000 started: lr=0" in shown
    assert "ended after 3 iterations" in shown
    assert "loss=0.25" in shown
    assert "failed: ran out of memory" in shown
    assert "results: s3://tune/runs/climb" in shown


def test_why_nothing_runs_is_reported_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def waiting(nodes: int) -> Json:
        return {"conditions": [condition_of("Ready", "False", "Unschedulable", f"not enough cpu on {nodes} nodes")]}

    done = {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}
    world.statuses = [*[waiting(n) for n in range(1, 9)], done]
    world.tuner().fit()
    shown = capsys.readouterr().out
    assert shown.count("warning:") == 1
    assert "Unschedulable: not enough cpu" in shown


def test_an_operator_that_never_looks_is_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    done: Json = {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}
    world.statuses = [*[{"observedGeneration": -1}] * 60, done]
    world.tuner().fit()
    assert "no operator has seen it yet" in capsys.readouterr().out


def test_invalid_spec_ends_the_wait_at_once(world: World) -> None:
    stalled = {"conditions": [condition_of("Stalled", "True", "InvalidSpec", "spec.stop is wrong")]}
    world.statuses = [stalled] * 10
    with pytest.raises(TrialpodError, match=r"has stalled: spec.stop is wrong.*trialpod delete climb -n team"):
        world.tuner().fit()
    assert world.slept < 10
    world.server.objects.clear()
    world.statuses = [{"conditions": [condition_of("Stalled", "True", "SecretNotFound", "no Secret")]}] * 2000
    with pytest.raises(TrialpodError, match="no Secret"):
        world.tuner().fit()
    assert world.slept > 50


def test_the_same_script_run_again_follows_the_experiment(world: World) -> None:
    done = {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}
    world.statuses = [done] * 20
    world.tuner().fit()
    (world.bucket / "runs/climb/.trialpod/experiment.json").write_text("{}")
    world.statuses = [done] * 20
    world.tuner().fit()
    assert [method for method, _ in world.server.requests].count("POST") == 1
    assert "PATCH" not in [method for method, _ in world.server.requests]


def test_a_larger_budget_is_taken_over_and_anything_else_refused(world: World) -> None:
    done = {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}
    world.statuses = [done] * 50
    world.tuner().fit()
    world.statuses = [done] * 50
    world.tuner(num_samples=6).fit()
    assert world.server.experiment("climb")["spec"]["numSamples"] == 6
    with pytest.raises(
        InvalidInputError, match=r"TuneExperiment climb whose spec.seed is different.*delete te climb"
    ):
        world.tuner(num_samples=6, seed=9).fit()


@pytest.mark.parametrize("how", ["resume_errored", "restart_errored"])
def test_restore_tries_failed_trials_again(world: World, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    ended = {"conditions": [condition_of("Failed", "True", "Failed")], "trials": {"total": 2, "done": 2, "error": 2}}
    world.statuses = [ended] * 20
    world.tuner().fit()
    (world.bucket / "runs/climb/.trialpod/experiment.json").write_text("{}")
    done = {"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}, "retried": "what was asked for"}
    world.statuses = [ended, ended, ended, *([done] * 20)]
    right = KubernetesBackend.run
    wanted: dict[str, Any] = {how: True}
    monkeypatch.setattr(
        KubernetesBackend, "run", lambda self, request: right(self, dataclasses.replace(request, **wanted))
    )
    world.tuner().fit()
    asked = world.server.experiment("climb")["metadata"]["annotations"]["trialpod.dev/retry"]
    assert ("from-scratch" in asked) == (how == "restart_errored")


def test_an_experiment_that_is_deleted_meanwhile_ends_the_wait(world: World) -> None:
    running: Json = {"conditions": [condition_of("Ready", "True", "Running")], "trials": {"total": 2}}
    world.statuses = [running, running, None]
    with pytest.raises(TrialpodError, match="was deleted while this waited"):
        world.tuner().fit()


def test_ctrl_c_leaves_it_running_and_says_how_to_come_back(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.tuner(backend=KubernetesBackend(credentials_secret="", environ={}, sleep=interrupt)).fit()
    shown = capsys.readouterr().out
    assert "continues in the cluster" in shown
    assert "trialpod delete climb -n team" in shown
    assert ("tuneexperiments", "climb") in world.server.objects


def test_nothing_is_created_or_left_behind_when_it_cannot_run(world: World, tmp_path: Path) -> None:
    tuner = world.tuner()
    tuner.run_config.name = "Not_a_name"
    with pytest.raises(InvalidInputError, match="RunConfig"):
        tuner.fit()
    assert world.server.objects == {}
    assert [path for path in world.bucket.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "work" / "climb").exists()


def test_template_with_unknown_field_is_refused_first(world: World) -> None:
    backend = world.backend(template={"spec": {"nodeSelectr": {"disk": "ssd"}}})
    with pytest.raises(InvalidInputError, match=r"no field spec.nodeSelectr.*did you mean nodeSelector"):
        world.tuner(backend=backend).fit()
    assert world.server.objects == {}
    assert not list(world.bucket.rglob("*.pkl"))


def test_own_deciding_code_goes_into_the_bucket(world: World) -> None:
    world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
    tuner = world.tuner()
    tuner.run_config.stop = lambda trial_id, result: True
    tuner.fit()
    (item,) = world.server.objects.values()
    decider = item["spec"]["decider"]
    assert decider["code"][0].startswith("the stop function")
    file = world.bucket / decider["pickle"]["uri"].removeprefix("s3://tune/")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == decider["pickle"]["sha256"]
    assert "stoppers" not in item["spec"]


def test_keys_of_this_process_are_not_taken_for_keys_of_the_pods(world: World) -> None:
    backend = world.backend(credentials_secret=None, environ={"AWS_ACCESS_KEY_ID": "mine"})
    with pytest.raises(InvalidInputError, match=r"TRIALPOD_CREDENTIALS_SECRET=NAME.*-n team create secret"):
        world.tuner(backend=backend).fit()


def test_recreated_resource_resumes_with_the_original_code(world: World) -> None:
    trainable = {"pickle": {"uri": "s3://tune/runs/climb/.trialpod/trainable-old.pkl", "sha256": "a" * 64}}
    place = world.bucket / "runs/climb/.trialpod"
    place.mkdir(parents=True)
    (place / "experiment.json").write_text(json.dumps({"manifest": {"spec": {"trainable": trainable}}}))
    with pytest.raises(InvalidInputError, match="holds an experiment already"):
        world.tuner().fit()
    world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
    backend = world.backend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIALPOD_RESUME", "1")
        world.tuner(backend=backend).fit()
    assert world.server.experiment("climb")["spec"]["trainable"] == trainable


def test_unnamed_experiment_gets_a_valid_name() -> None:
    names = {KubernetesBackend(environ={}).default_name("Train_My.Very_Long_Model" * 4, 0.0) for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 40 and name.startswith("train-my-very-long") for name in names)


@pytest.mark.parametrize(
    ("name", "near"),
    [("digits-1", "digits-1"), ("My_Digits", "my-digits"), ("a" * 50, "a" * 40), ("-", "experiment")],
)
def test_name_of_a_script_for_ray_becomes_a_valid_one(name: str, near: str) -> None:
    assert KubernetesBackend.nearest_name(name) == near


def test_it_is_found_by_its_name() -> None:
    assert isinstance(get_backend("kubernetes"), KubernetesBackend)


def test_the_public_name_is_cheap_until_it_is_used() -> None:
    code = (
        "import sys, trialpod.kubernetes as made;"
        "print([name for name in sys.modules if name.startswith(('trialpod_operator', 'trialpod.tune'))]);"
        "print(made.KubernetesBackend.__name__, 'kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "KubernetesBackend False"]
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        trialpod.kubernetes.Other  # noqa: B018


class TestScriptRunAgain:
    """Another process pickles the same classes in other bytes: each process numbers them at random."""

    def fit(self, world: World, given: Any) -> None:
        world.statuses = [{"conditions": SUCCEEDED, "trials": {"total": 2, "done": 2}}]
        tuner = world.tuner()
        tune.Tuner(
            given,
            param_space={"lr": tune.uniform(0, 1)},
            tune_config=tuner.tune_config,
            run_config=tuner.run_config,
            backend=world.backend(),
        ).fit()

    def model(self, rate: float) -> Any:
        class Model(tune.Trainable):
            def step(self) -> Json:
                return {"loss": rate}

        return Model

    def test_unchanged_code_is_no_other_code(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        self.fit(world, self.model(0.5))
        self.fit(world, self.model(0.5))
        code = list((world.bucket / "runs/climb").rglob("trainable*.pkl"))
        assert "this script's differs" not in caplog.text
        assert len(code) == 1
        self.fit(world, self.model(0.25))
        assert "this script's differs" in caplog.text

    def test_a_seeded_generator_may_be_anywhere(self, world: World) -> None:
        np.random.seed(3)
        self.fit(world, train)
        assert "random_state" in world.server.experiment("climb")["spec"]["searchAlgorithm"]["parameters"]
        self.fit(world, train)
        np.random.seed(3)
        np.random.rand(2)
        after = np.random.rand()
        np.random.seed(3)
        self.fit(world, train)
        assert np.random.rand() != after, "one that is followed again has drawn its values before"
