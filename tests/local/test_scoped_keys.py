"""Keys that open only what one attempt needs, made by a real MinIO server and used by a real runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from minio_admin import Admin
from minio_server import Ca, FixedKeys, MinioServer
from report_server import ReportServer

from trialpod.protocol.messages import (
    Assignment,
    CheckpointRules,
    CredentialsAnswer,
    CredentialsRequest,
    StopRule,
    TrainableRef,
)
from trialpod.protocol.packed import pack
from trialpod.storage.base import KeyMissingError, StorageUnavailableError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.credentials import Credentials, Supply
from trialpod.storage.s3.storage import S3Storage
from trialpod.storage.s3.sts import StsRefusedError, assume_role
from trialpod_operator.cluster.key_issuer import session_policy

pytestmark = [pytest.mark.local, pytest.mark.once]

MINE, OTHER = "s3://tune/team/digits/train_1", "s3://tune/team/digits/train_2"
CODE = "s3://tune/team/digits/.trialpod/trainable.pkl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        Admin(started).add_user("operator", "operator-secret")
        team = started.storage("s3://tune/team/digits")
        team.write("train_2/checkpoint_000000/model", b"other")
        team.write(".trialpod/journal/1", b"journal")
        yield started


def options(server: MinioServer) -> StorageOptions:
    return StorageOptions(endpoint=server.endpoint).resolved({})


def made(server: MinioServer, policy: str) -> tuple[Credentials, float]:
    """Keys from a user's keys, as the operator has them made."""
    user = Credentials("operator", "operator-secret")
    found = assume_role(options(server), user, policy, duration_s=900)
    return found.credentials, found.lifetime_s


def opened(server: MinioServer, credentials: Credentials, uri: str) -> S3Storage:
    keys = FixedKeys()
    keys.now = credentials
    return S3Storage(server.client("tune", keys=keys, retry_s=0.0), uri.removeprefix("s3://tune/"))


def test_keys_open_the_trials_checkpoints_and_nothing_else(server: MinioServer, tmp_path: Path) -> None:
    credentials, lifetime_s = made(server, session_policy(MINE, OTHER))
    assert 890 <= lifetime_s <= 900
    mine, other = opened(server, credentials, MINE), opened(server, credentials, OTHER)
    mine.write("checkpoint_000000/small", b"x")
    large = tmp_path / "large"
    large.write_bytes(os.urandom(12 << 20))
    parts = S3Storage(
        server.client("tune", keys=_fixed(credentials), part_bytes=5 << 20, multipart_bytes=6 << 20),
        "team/digits/train_1",
    )
    parts.put_file(large, "checkpoint_000000/large")
    mine.copy("checkpoint_000000/large", "checkpoint_000001/.trialpod-copy-0000")
    assert len(mine.list()) == 3
    assert mine.abort_uploads(["checkpoint_000000/large"]) == 0
    with pytest.raises(KeyMissingError):
        mine.read("checkpoint_000009/model")
    mine.delete_tree("checkpoint_000000")
    assert other.read("checkpoint_000000/model") == b"other"

    experiment = mine.parent()
    assert experiment.uri == "s3://tune/team/digits"
    assert not experiment.exists(EXPERIMENT_KEY)
    server.storage("s3://tune/team/digits").write(EXPERIMENT_KEY, b"{}")
    assert experiment.exists(EXPERIMENT_KEY)
    refused: list[Any] = [
        lambda: mine.write("result.json", b"forged"),
        lambda: other.write("checkpoint_000000/model", b"forged"),
        lambda: other.delete("checkpoint_000000/model"),
        lambda: other.copy("checkpoint_000000/model", "checkpoint_000001/model"),
        lambda: experiment.read(".trialpod/journal/1"),
        lambda: experiment.exists(".trialpod/journal"),
        lambda: experiment.read(EXPERIMENT_KEY),
        lambda: experiment.list(),
        lambda: opened(server, credentials, "s3://tune/elsewhere").write("a", b""),
        lambda: opened(server, credentials, "s3://tune/elsewhere").list(),
    ]
    for call in refused:
        with pytest.raises(StorageUnavailableError, match="denies access"):
            call()


def _fixed(credentials: Credentials) -> FixedKeys:
    keys = FixedKeys()
    keys.now = credentials
    return keys


def test_a_store_that_makes_no_keys_says_why(server: MinioServer) -> None:
    with pytest.raises(StsRefusedError, match=r"AccessDenied \(.*does not exist in our records") as caught:
        assume_role(options(server), Credentials("nobody", "nobodys-secret"), session_policy(MINE), duration_s=900)
    assert caught.value.code == "AccessDenied"
    assert "nobodys-secret" not in str(caught.value)
    with pytest.raises(StsRefusedError, match="InvalidParameterValue"):
        assume_role(options(server), server.keys.now, session_policy(MINE), duration_s=100)
    away = StorageOptions(endpoint="http://127.0.0.1:9").resolved({})
    with pytest.raises(StorageUnavailableError, match="cannot be reached"):
        assume_role(away, server.keys.now, session_policy(MINE), duration_s=900)


def test_certificates_come_with_options_when_not_mounted(tmp_path: Path) -> None:
    authority = Ca(tmp_path / "ca", ("localhost",))
    with MinioServer(tmp_path, ca=authority) as tls:
        tls.storage("s3://tune/team")
        reached = StorageOptions(endpoint=tls.endpoint, ca_pem=authority.ca_file.read_text()).resolved({})
        keys = _once_started(lambda: assume_role(reached, tls.keys.now, session_policy(MINE), duration_s=900))
        S3Storage(S3Client("tune", reached, credentials=_fixed(keys)), "team/digits/train_1").write(
            "checkpoint_000000/model", b"x"
        )


def _once_started(ask: Callable[[], Supply]) -> Credentials:
    """A server that has just started serves objects somewhat sooner than it makes keys."""
    until = time.monotonic() + 90
    while True:
        try:
            return ask().credentials
        except StorageUnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)  # polls another process, which tells nobody when it is ready


SOURCE = """
import json, pathlib
from trialpod import tune

class Train(tune.Trainable):
    def setup(self, config):
        self.count = 0
    def step(self):
        self.count += 1
        return {"count": self.count}
    def save_checkpoint(self, folder):
        pathlib.Path(folder, "count.json").write_text(json.dumps(self.count))
    def load_checkpoint(self, folder):
        self.count = json.loads(pathlib.Path(folder, "count.json").read_text())
"""


class Desk:
    """What the operator does for the pods, in a test's report service."""

    def __init__(self, server: MinioServer, reports: ReportServer, source: str = "", pickle: str = "") -> None:
        self.server, self.source, self.pickle = server, source, pickle
        self.asked: list[CredentialsRequest] = []
        self.closed_for = 0
        self.lifetime_s = 0.0
        reports.keys = self.answer

    def answer(self, request: CredentialsRequest) -> CredentialsAnswer:
        self.asked.append(request)
        if len(self.asked) <= self.closed_for:
            return CredentialsAnswer(problem="the token service is away")
        keys, lifetime_s = made(self.server, session_policy(MINE, self.source, self.pickle))
        return CredentialsAnswer(
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            token=keys.token,
            lifetime_s=self.lifetime_s or lifetime_s,
        )


class Runner:
    """Runs attempts of the trial, each in a process, without any keys of its own."""

    def __init__(self, server: MinioServer, folder: Path) -> None:
        self.server, self.folder = server, folder

    def assignment(self, **fields: Any) -> Assignment:
        values: dict[str, Any] = {
            "trial_id": "t1",
            "attempt": 1,
            "trial_name": "train_t1",
            "experiment": "exp",
            "experiment_tag": "0",
            "trial_dir": str(self.folder / "trial"),
            "params": msgspec.Raw(msgspec.msgpack.encode({})),
            "trainable": TrainableRef(source=textwrap.dedent(SOURCE)),
            "checkpoint_uri": MINE,
            "storage_options": msgspec.to_builtins(
                StorageOptions(endpoint=self.server.endpoint, credentials_from="reports").resolved({})
            ),
            "checkpoint_rules": CheckpointRules(frequency=1, num_to_keep=2),
            "stop_rules": [StopRule("count", 5)],
        }
        return Assignment(**{**values, **fields})

    def run(self, reports: ReportServer, assignment: Assignment) -> str:
        reports.assignments.append(assignment)
        command = [sys.executable, "-m", "trialpod.runner", "--address", reports.address]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run(
            [*command, "--experiment", "exp", "--runner", "t1/1"],
            cwd=self.folder,
            env={**clean, "TRIALPOD_SCRATCH_DIR": str(self.folder), "HOME": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def fresh(server: MinioServer) -> S3Storage:
    """The trial's place, empty, by the server's own keys."""
    storage = server.storage(MINE)
    if storage.list():
        storage.delete_many(storage.list())
    return storage


def test_a_trial_checkpoints_resumes_and_sweeps_with_them(
    server: MinioServer, tmp_path: Path, fresh: S3Storage
) -> None:
    runner = Runner(server, tmp_path)
    with ReportServer(tmp_path) as reports:
        desk = Desk(server, reports)
        runner.run(reports, runner.assignment())
        kept = open_checkpoints(fresh).committed()
        assert [info.iteration for info in kept] == [4, 5], "the others were removed with these keys, too"
        fresh.write("checkpoint_000099/left", b"by a process that was killed")
        last = reports.checkpoints[-1]
        output = runner.run(
            reports,
            runner.assignment(
                attempt=2,
                checkpoint=last,
                checkpoints=kept,
                next_checkpoint_index=5,
                stop_rules=[StopRule("count", 7)],
            ),
        )
    assert [result["count"] for result in reports.results] == [1, 2, 3, 4, 5, 6, 7]
    assert not fresh.exists("checkpoint_000099/left"), "it was swept"
    assert [(each.trial_id, each.attempt) for each in desk.asked] == [("t1", 1), ("t1", 2)]
    assert "denies" not in output


def test_an_exploit_reads_the_other_trials_checkpoint(server: MinioServer, tmp_path: Path, fresh: S3Storage) -> None:
    place = server.storage(OTHER)
    store = open_checkpoints(place)
    folder = store.begin(7)
    (folder / "count.json").write_text(json.dumps(40))
    start = store.commit(7, iteration=40, metrics={}, attempt=1, time=0.0)
    runner = Runner(server, tmp_path)
    fields = {"checkpoint": start, "source_uri": OTHER, "source_dir": "x", "stop_rules": [StopRule("count", 42)]}
    with ReportServer(tmp_path) as reports:
        Desk(server, reports, source=OTHER)
        runner.run(reports, runner.assignment(**fields))
    assert [result["count"] for result in reports.results] == [41, 42]
    assert reports.ends[-1].cause == "completed"


def test_a_pickle_in_the_bucket_is_loaded_with_them(server: MinioServer, tmp_path: Path, fresh: S3Storage) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SOURCE, namespace)
    packed = pack(cloudpickle.dumps(namespace["Train"]), name="Train", cloudpickle=cloudpickle.__version__)
    server.storage("s3://tune/team/digits").write(".trialpod/trainable.pkl", packed)
    runner = Runner(server, tmp_path)
    with ReportServer(tmp_path) as reports:
        Desk(server, reports, pickle=CODE)
        runner.run(reports, runner.assignment(trainable=TrainableRef(pickle=CODE)))
    assert [result["count"] for result in reports.results] == [1, 2, 3, 4, 5]


def test_a_trial_waits_for_keys_and_loses_nothing(server: MinioServer, tmp_path: Path, fresh: S3Storage) -> None:
    runner = Runner(server, tmp_path)
    with ReportServer(tmp_path) as reports:
        desk = Desk(server, reports)
        desk.closed_for = 3
        output = runner.run(reports, runner.assignment())
    assert "the token service is away" in output
    assert [info.iteration for info in open_checkpoints(fresh).committed()] == [4, 5]
    assert reports.ends[-1].cause == "completed"


def test_keys_are_exchanged_before_they_expire_and_never_printed(
    server: MinioServer, tmp_path: Path, fresh: S3Storage
) -> None:
    runner = Runner(server, tmp_path)
    with ReportServer(tmp_path) as reports:
        desk = Desk(server, reports)
        desk.lifetime_s = 0.001  # as the runner is told: each step needs new ones
        output = runner.run(reports, runner.assignment())
    assert len(desk.asked) > 2
    assert [result["count"] for result in reports.results] == [1, 2, 3, 4, 5]
    assert "secret" not in output.lower()
