"""What can go wrong between a `CommitQueue` and a real MinIO server: nothing of it loses a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from minio_admin import Admin
from minio_server import FixedKeys, MinioServer, environment_keys
from report_server import ReportServer
from s3_proxy import AnsweringProxy, CuttingProxy

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import Assignment, CheckpointInfo, CheckpointRules, TrainableRef
from trialpod.storage.base import Storage
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.checkpoints.commit_queue import CommitQueue
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.deletion import delete_experiment
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.storage import S3Storage

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

MEBIBYTE = 1024 * 1024
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        started.storage("s3://trials")
        yield started


class Trial:
    """One attempt's checkpoints, with a first one committed."""

    def __init__(
        self,
        server: MinioServer,
        folder: Path,
        place: str,
        *,
        endpoint: str = "",
        keys: FixedKeys | None = None,
        wall_clock: Callable[[], float] = time.time,
        scratch: Path | None = None,
        attempt: int = 1,
        known: list[CheckpointInfo] | None = None,
        storage: Storage | None = None,
    ) -> None:
        options = server.options(
            endpoint=endpoint or server.endpoint,
            part_bytes=5 * MEBIBYTE,
            multipart_bytes=6 * MEBIBYTE,
            retry_s=1.0,
            create_bucket=False,
        ).resolved({})
        client = S3Client("trials", options, credentials=keys or server.keys, wall_clock=wall_clock)
        self.storage = storage or S3Storage(client, place)
        self.store = RemoteCheckpointStore(self.storage, scratch=scratch or folder)
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir(exist_ok=True)
        self.attempt = attempt
        self.told: list[str] = []
        self.writer = CommitQueue(
            self.store,
            attempt=attempt,
            rules=CheckpointRules(),
            known=known or [],
            announce=lambda info: self.told.append(info.name),
            deleted=self.told.extend,
            check=lambda: None,
        )

    def take(self, index: int, size: int = 16 * MEBIBYTE + 1) -> None:
        (self.source / "model.bin").write_bytes(os.urandom(size))
        (self.source / "index").write_text(str(index))
        size = self.store.snapshot(index, self.source)
        name = f"checkpoint_{index:06d}"
        info = CheckpointInfo(
            name=name, index=index, iteration=index, metrics={}, attempt=self.attempt, size=size, time=1.0
        )
        self.writer.submit(info)

    def drained(self) -> bool:
        until = time.monotonic() + 60
        return self.writer.drain(lambda: until - time.monotonic())

    def close(self) -> None:
        self.writer.close()
        self.store.close()
        self.storage.close()


def restored(server: MinioServer, folder: Path, place: str) -> list[str]:
    """Fetch all that is committed, and return each one's number as it is written in it."""
    storage = server.storage(f"s3://trials/{place}")
    store = RemoteCheckpointStore(storage, scratch=folder)
    found = [(store.fetch(info) / "index").read_text() for info in store.committed()]
    store.close()
    storage.close()
    return found


def test_a_server_that_is_killed_in_mid_upload_and_started_again(server: MinioServer, tmp_path: Path) -> None:
    with CuttingProxy(server.port, after=12 * MEBIBYTE, then=server.kill) as proxy:
        trial = Trial(server, tmp_path, "killed", endpoint=proxy.endpoint)
        trial.take(0, 1000)
        trial.take(1)
        trial.writer.wait_committed_or_unavailable(1)  # returns although nothing can be stored: training continues
        assert proxy.cuts == 1
        server.start()
        assert trial.drained()
        trial.close()
    assert trial.told == ["checkpoint_000000", "checkpoint_000001"]
    assert restored(server, tmp_path, "killed") == ["0", "1"]


@pytest.mark.parametrize("after", [2500, 3 * MEBIBYTE, 15 * MEBIBYTE])
def test_a_connection_that_is_cut(server: MinioServer, tmp_path: Path, after: int) -> None:
    with CuttingProxy(server.port, after=after) as proxy:
        trial = Trial(server, tmp_path, f"cut-{after}", endpoint=proxy.endpoint)
        trial.take(0)
        assert trial.drained()
        trial.close()
        assert proxy.cuts == 1
    assert restored(server, tmp_path, f"cut-{after}") == ["0"]


def test_slow_down_longer_than_an_operation_waits(
    server: MinioServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        return None if "cannot be stored since" in caplog.text else (503, "SlowDown")

    with AnsweringProxy(server.endpoint, rule) as proxy:
        trial = Trial(server, tmp_path, "slow-down", endpoint=proxy.endpoint)
        trial.take(0, 100_000)
        assert trial.drained()
        trial.close()
    assert "cannot be stored since" in caplog.text
    assert "SlowDown" in caplog.text
    assert restored(server, tmp_path, "slow-down") == ["0"]


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)


@needs_root
def test_a_full_disk_of_the_server_until_it_has_space(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    data.mkdir()
    mount(data, "size=24m")
    try:
        with MinioServer(tmp_path, data=data) as full:
            full.storage("s3://trials")
            trial = Trial(full, tmp_path, "full")
            trial.take(0, 1000)
            trial.take(1, 30 * MEBIBYTE)
            trial.writer.wait_committed_or_unavailable(1)
            assert trial.told == ["checkpoint_000000"]
            mount(data, "remount,size=300m")
            assert trial.drained()
            trial.close()
            assert restored(full, tmp_path, "full") == ["0", "1"]
    finally:
        subprocess.run(["umount", "--lazy", data], check=True)
    assert "full" in caplog.text


@needs_root
def test_full_local_disk_fails_one_report_and_next_works(server: MinioServer, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mount(scratch, "size=20m")
    try:
        trial = Trial(server, tmp_path, "local-full", scratch=scratch)
        trial.take(0)
        with pytest.raises(StorageError, match=r"no space left on the device \(.* needed, .* free\)"):
            trial.take(1, 30 * MEBIBYTE)
        assert trial.drained()
        trial.take(1)
        assert trial.drained()
        trial.close()
        assert os.listdir(scratch) == []
    finally:
        subprocess.run(["umount", scratch], check=True)
    assert restored(server, tmp_path, "local-full") == ["0", "1"]


def test_a_user_who_is_locked_out_and_in_again(
    server: MinioServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin(server)
    admin.add_user("trainer", "trainers-secret")
    trial = Trial(server, tmp_path, "locked-out", keys=FixedKeys("trainer", "trainers-secret"))
    trial.take(0, 1000)
    assert trial.drained()
    admin.set_status("trainer", "disabled")
    trial.take(1, 1000)
    trial.writer.wait_committed_or_unavailable(1)
    assert trial.told == ["checkpoint_000000"]
    admin.set_status("trainer", "enabled")
    assert trial.drained()
    trial.close()
    assert trial.told == ["checkpoint_000000", "checkpoint_000001"]
    assert "credentials from the test" in caplog.text


@pytest.mark.parametrize("hours", [-2, 3])
def test_a_clock_that_is_hours_off(server: MinioServer, tmp_path: Path, hours: int) -> None:
    trial = Trial(server, tmp_path, f"skewed{hours}", wall_clock=lambda: time.time() + hours * 3600)
    trial.take(0)
    assert trial.drained()
    trial.close()
    assert restored(server, tmp_path, f"skewed{hours}") == ["0"]


def test_missing_bucket_ends_training_or_is_created(server: MinioServer, tmp_path: Path) -> None:
    gone = S3Storage(server.client("gone", create_bucket=False), "trial")
    trial = Trial(server, tmp_path, "gone", storage=gone)
    trial.take(0, 1000)
    with pytest.raises(StorageError, match=r"bucket does not exist; make it, or set `createBucket: true`"):
        trial.drained()
    trial.close()
    made = server.storage("s3://made-for-it/trial", create_bucket=True)
    trial = Trial(server, tmp_path, "gone", storage=made)
    trial.take(0, 1000)
    assert trial.drained()
    assert [info.index for info in trial.store.committed()] == [0]
    trial.close()


def test_superseded_upload_ends_and_successor_is_complete(server: MinioServer, tmp_path: Path) -> None:
    started, taken_over = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert taken_over.wait(60)

    with CuttingProxy(server.port, after=9 * MEBIBYTE, then=hold) as proxy:
        (tmp_path / "a").mkdir()
        old = Trial(server, tmp_path / "a", "two", endpoint=proxy.endpoint)
        old.take(0, 1000)
        old.take(1)
        assert started.wait(60)
        (tmp_path / "b").mkdir()
        first = RemoteCheckpointStore(server.storage("s3://trials/two"), scratch=tmp_path / "b").committed()
        new = Trial(server, tmp_path / "b", "two", attempt=2, known=first)
        assert new.store.sweep([info.name for info in first]) == ["checkpoint_000001"]
        index = new.store.reserve(1, 2)
        assert index == 2
        new.take(index, 2000)
        assert new.drained()
        taken_over.set()
        with pytest.raises(CheckpointError, match=r"taken|given up|superseded"):
            old.drained()
        old.close()
        new.close()
    assert restored(server, tmp_path, "two") == ["0", "2"]


KILLED = """
import os, sys
from pathlib import Path
from trialpod.storage.registry import open_storage
from trialpod.storage.options import StorageOptions
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
endpoint, folder = sys.argv[1:]
options = StorageOptions(endpoint=endpoint, part_bytes=5 << 20, multipart_bytes=6 << 20)
store = RemoteCheckpointStore(open_storage("s3://trials/kill-9", options), scratch=Path(folder))
source = Path(folder, "from")
source.mkdir()
for index, size in ((0, 1000), (1, 30 << 20)):
    (source / "model.bin").write_bytes(os.urandom(size))
    (source / "index").write_text(str(index))
    store.snapshot(index, source)
    store.commit(index, iteration=index, metrics={}, attempt=1, time=1.0)
"""


def test_leftovers_of_killed_upload_are_removed_by_next(server: MinioServer, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    processes: list[subprocess.Popen[bytes]] = []
    with (
        environment_keys(),
        CuttingProxy(server.port, after=14 * MEBIBYTE, then=lambda: processes[0].kill()) as proxy,
    ):
        processes.append(subprocess.Popen([sys.executable, "-c", KILLED, proxy.endpoint, str(scratch)]))
        assert processes[0].wait(60) == -signal.SIGKILL

    def unfinished() -> int:
        query = {"uploads": "", "prefix": "kill-9/checkpoint_000001/model.bin"}
        return server.client("trials").call("GET", "", "look", query=query).body.count(b"<Upload>")

    assert unfinished() == 1
    assert [name for name in os.listdir(scratch) if name != "from"] != []
    trial = Trial(server, tmp_path, "kill-9", scratch=scratch, attempt=2)
    (first,) = trial.store.committed()
    assert trial.store.sweep([first.name]) == ["checkpoint_000001"]
    assert unfinished() == 0
    trial.store.fetch(first)
    assert len([name for name in os.listdir(scratch) if name != "from"]) == 1
    trial.close()
    assert os.listdir(scratch) == ["from"]


def test_an_experiment_is_deleted_and_its_neighbour_is_not(server: MinioServer, tmp_path: Path) -> None:
    for place in ("exp/trial", "exp2/trial"):
        trial = Trial(server, tmp_path, place)
        trial.take(0, 1000)
        assert trial.drained()
        trial.close()
    bucket = server.storage("s3://trials")
    assert delete_experiment(bucket.sub("exp"), lambda: 60.0).done
    assert bucket.list("exp") == []
    assert restored(server, tmp_path, "exp2/trial") == ["0"]


def test_first_checkpoint_equal_to_the_last_is_server_copied(server: MinioServer, tmp_path: Path) -> None:
    trial = Trial(server, tmp_path, "copied")
    trial.take(0)
    assert trial.drained()
    (info,) = trial.store.committed()
    trial.close()
    with CuttingProxy(server.port, after=1 * MEBIBYTE) as proxy:
        successor = Trial(server, tmp_path, "copied", endpoint=proxy.endpoint, attempt=2, known=[info])
        assert successor.store.latest_valid([info])[0] == info
        successor.store.snapshot(1, successor.store.fetch(info))
        second = successor.store.commit(1, iteration=1, metrics={}, attempt=2, time=2.0)
        assert proxy.cuts == 0  # a megabyte was not sent
        successor.close()
    reader = RemoteCheckpointStore(server.storage("s3://trials/copied"), scratch=tmp_path)
    reader.delete(info.name)
    assert (reader.fetch(second) / "model.bin").read_bytes() == (trial.source / "model.bin").read_bytes()
    reader.close()


LAST = """
import os, tempfile, time
from trialpod.tune.session import report, get_context
from trialpod.tune.checkpoints.checkpoint import Checkpoint
def train(config):
    def save(step, size):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "index"), "w").write(str(step))
            open(os.path.join(folder, "model.bin"), "wb").write(os.urandom(size))
            report({"step": step}, checkpoint=Checkpoint(folder))
    save(0, 1000)
    while not get_context().preempted:
        time.sleep(0.01)
    save(1, config["size"])
"""


@pytest.mark.parametrize(
    ("grace_s", "bytes_per_s", "fits"), [(5.0, 1e6, False), (15.0, 0.3e6, False), (15.0, 2e6, True), (5.0, 8e6, True)]
)
def test_a_slow_server_and_a_grace_period(
    server: MinioServer, tmp_path: Path, grace_s: float, bytes_per_s: float, fits: bool
) -> None:
    """Eight megabytes: in time when they can be, and else the process leaves before it is killed."""
    place = f"grace-{grace_s:g}-{bytes_per_s:g}"
    reports = ReportServer(tmp_path)
    with reports, CuttingProxy(server.port, after=1 << 60, bytes_per_s=bytes_per_s) as proxy, environment_keys():
        values = {"trial_id": "t1", "attempt": 1, "trial_name": "t", "experiment": "exp", "experiment_tag": "0"}
        reports.assignments.append(
            Assignment(
                **values,  # type: ignore[arg-type]
                trial_dir=str(tmp_path / "trial"),
                trainable=TrainableRef(source=textwrap.dedent(LAST), attribute="train"),
                params=msgspec.Raw(msgspec.msgpack.encode({"size": 8_000_000})),
                checkpoint_uri=f"s3://trials/{place}",
                storage_options=msgspec.to_builtins(StorageOptions(endpoint=proxy.endpoint)),
                grace_s=grace_s,
            )
        )
        command = [sys.executable, "-m", "trialpod.runner", "--address", reports.address]
        process = subprocess.Popen(
            [*command, "--experiment", "exp", "--runner", "r1"],
            cwd=tmp_path,
            env={**os.environ, "TRIALPOD_SCRATCH_DIR": str(tmp_path)},
        )
        try:
            reports.wait(lambda: len(reports.checkpoints) == 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(grace_s + 30.0) == 0
        finally:
            process.kill()
            process.wait()
    assert reports.ends[-1].cause == "preempted"
    assert ("could not be stored within the grace period" in reports.ends[-1].error) is not fits
    assert restored(server, tmp_path, place) == (["0", "1"] if fits else ["0"])


def test_a_uri_that_names_its_server_is_opened_there(server: MinioServer) -> None:
    with environment_keys():
        storage = open_storage(f"s3://trials/by-uri?endpoint={server.endpoint}")
        storage.write("a", b"x")
        assert open_storage("s3://trials/by-uri").read("a") == b"x"
        assert storage.uri == "s3://trials/by-uri"
        assert open_checkpoints(storage).committed() == []
        storage.close()
