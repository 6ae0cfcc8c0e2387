from __future__ import annotations

import os
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from minio_server import FixedKeys, MinioServer
from s3_proxy import AnsweringProxy, CuttingProxy, Rule

from trialpod.errors import StorageError
from trialpod.storage.base import (
    ConditionalWriteUnsupportedError,
    KeyChangedError,
    KeyExistsError,
    StorageUnavailableError,
)
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.storage import S3Storage

pytestmark = [pytest.mark.local, pytest.mark.once]

MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        started.storage("s3://faults")
        yield started


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(26 * MEBIBYTE + 1))
    return path


class Waits:
    """Stands for `time.sleep`: notes the delays, and the first time does what heals the fault."""

    def __init__(self, heal: Callable[[], object] = lambda: None) -> None:
        self.delays: list[float] = []
        self._heal: Callable[[], object] | None = heal
        self._lock = threading.Lock()

    def __call__(self, seconds: float) -> None:
        with self._lock:
            self.delays.append(seconds)
            heal, self._heal = self._heal, None
            if heal is not None:
                heal()


def reach(
    server: MinioServer,
    *,
    endpoint: str = "",
    keys: FixedKeys | None = None,
    sleep: Callable[[float], None] | None = None,
    wall_clock: Callable[[], float] = time.time,
    **changes: object,
) -> S3Storage:
    values = {"part_bytes": 5 * MEBIBYTE, "multipart_bytes": 6 * MEBIBYTE, "create_bucket": False, **changes}
    options = server.options(endpoint=endpoint or server.endpoint, **values).resolved({})
    client = S3Client(
        "faults",
        options,
        credentials=keys or server.keys,
        sleep=sleep or Waits(),
        wall_clock=wall_clock,
        uniform=lambda: 0.5,
    )
    return S3Storage(client)


def same(storage: S3Storage, key: str, local: Path) -> bool:
    back = local.with_name("back")
    return (
        storage.get_file(key, back) == zlib.crc32(local.read_bytes()) and back.stat().st_size == local.stat().st_size
    )


def test_upload_survives_server_kill_and_restart(server: MinioServer, large: Path) -> None:
    waits = Waits(server.start)
    with CuttingProxy(server.port, after=12 * MEBIBYTE, then=server.kill) as proxy:
        storage = reach(server, endpoint=proxy.endpoint, sleep=waits)
        storage.put_file(large, "killed")
        assert proxy.cuts == 1
        assert same(storage, "killed", large)
    assert waits.delays


@pytest.mark.parametrize("after", [200, 3 * MEBIBYTE, 20 * MEBIBYTE])
def test_an_upload_survives_a_connection_that_is_cut(server: MinioServer, large: Path, after: int) -> None:
    with CuttingProxy(server.port, after=after) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        storage.put_file(large, f"cut-{after}")
        assert proxy.cuts == 1
        assert same(reach(server), f"cut-{after}", large)


def test_a_download_survives_a_connection_that_is_cut(server: MinioServer, large: Path) -> None:
    reach(server).put_file(large, "fetched")
    with CuttingProxy(server.port, after=600) as proxy:
        assert same(reach(server, endpoint=proxy.endpoint), "fetched", large)
        assert proxy.cuts == 1


def test_slow_down_is_answered_with_backoff(server: MinioServer) -> None:
    left = [4]

    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        left[0] -= 1
        return (503, "SlowDown") if left[0] >= 0 else None

    waits = Waits()
    with AnsweringProxy(server.endpoint, rule) as proxy:
        reach(server, endpoint=proxy.endpoint, sleep=waits).write("slow", b"x")
        assert len(proxy.seen) == 5
    assert waits.delays == pytest.approx([0.075, 0.15, 0.3, 0.6])
    assert reach(server).read("slow") == b"x"


def test_unavailable_server_is_given_up_after_the_timeout(server: MinioServer) -> None:
    with AnsweringProxy(server.endpoint, lambda method, target, forward: (503, "SlowDown")) as proxy:
        storage = reach(server, endpoint=proxy.endpoint, retry_s=1.0)
        with pytest.raises(StorageUnavailableError, match=r"cannot write s3://faults/x: .*SlowDown"):
            storage.write("x", b"x")


def losing(decisive: str) -> tuple[Rule, list[str]]:
    """Return a rule that loses the first answer to a request that decides, and what it lost."""
    lost: list[str] = []

    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        if method == decisive and not lost and not target.endswith("?uploads="):
            lost.append(target)
            forward()
            return 0, ""
        return None

    return rule, lost


def test_lost_answer_to_conditional_write_is_no_lost_race(server: MinioServer) -> None:
    rule, lost = losing("PUT")
    with AnsweringProxy(server.endpoint, rule) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        storage.write_new("lost-bytes", b"mine")
        assert lost
        assert reach(server).read("lost-bytes") == b"mine"
        with pytest.raises(KeyExistsError):
            storage.write_new("lost-bytes", b"mine")


def test_lost_answer_to_completed_upload_is_no_error(server: MinioServer, large: Path) -> None:
    rule, lost = losing("POST")
    with AnsweringProxy(server.endpoint, rule) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        storage.put_file(large, "lost-parts")
        assert lost
        assert same(storage, "lost-parts", large)


def test_lost_answer_to_replacement_is_no_conflict(server: MinioServer) -> None:
    lost: list[str] = []

    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        if method == "PUT" and not lost:
            lost.append(target)
            forward()
            return 0, ""
        return None

    version = reach(server).write_if("replaced", b"one", None)
    with AnsweringProxy(server.endpoint, rule) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        second = storage.write_if("replaced", b"two", version)
        assert lost
        assert reach(server).read_version("replaced") == (b"two", second)
        with pytest.raises(KeyChangedError):
            storage.write_if("replaced", b"three", version)


def test_repeated_deletion_spares_what_came_after_the_first(server: MinioServer) -> None:
    rule, lost = losing("DELETE")

    def rule_of_two(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        answer = rule(method, target, forward)
        if answer is not None:
            reach(server).write_new("claimed", b"of another")
        return answer

    version = reach(server).write_if("claimed", b"mine", None)
    with AnsweringProxy(server.endpoint, rule_of_two) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        storage.delete_if("claimed", version)
        assert lost
        found, version = storage.read_version("claimed")
        assert found == b"of another"
        storage.delete_if("claimed", version)
        storage.delete_if("claimed", version)
        assert not storage.exists("claimed")


def test_missing_conditional_writes_differ_from_failure(server: MinioServer) -> None:
    version = reach(server).write_if("unconditional", b"one", None)
    with AnsweringProxy(server.endpoint, lambda method, target, forward: (501, "NotImplemented")) as proxy:
        with pytest.raises(ConditionalWriteUnsupportedError, match="If-Match"):
            reach(server, endpoint=proxy.endpoint).write_if("unconditional", b"two", version)
        assert len(proxy.seen) == 1
    assert reach(server).read("unconditional") == b"one"


def test_a_race_lost_behind_a_fault_is_still_lost(server: MinioServer) -> None:
    """The first try fails on the way, and another writer is faster than the second."""
    faults: list[str] = []

    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        if method == "PUT" and not faults:
            faults.append(target)
            reach(server).write_new("contested", b"other")
            return 0, ""
        return None

    with AnsweringProxy(server.endpoint, rule) as proxy, pytest.raises(KeyExistsError):
        reach(server, endpoint=proxy.endpoint).write_new("contested", b"mine")
    assert reach(server).read("contested") == b"other"


def test_damaged_bytes_are_refused_and_sent_again(server: MinioServer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 1000)
    waits = Waits()
    with AnsweringProxy(server.endpoint, damage_first_body=True) as proxy:
        reach(server, endpoint=proxy.endpoint, sleep=waits).put_file(path, "damaged")
        assert len(proxy.seen) == 2
    assert reach(server).read("damaged") == b"a" * 1000


def test_keys_that_are_revoked_and_restored_only_delay_a_write(server: MinioServer, large: Path) -> None:
    good = server.keys

    def revoke() -> None:
        server.keys = FixedKeys("another-user", "another-secret")
        server.restart()

    def restore() -> None:
        server.keys = good
        server.restart()

    waits = Waits(restore)
    storage = reach(server, keys=good, sleep=waits)
    revoke()
    storage.put_file(large, "revoked")
    assert waits.delays
    assert same(storage, "revoked", large)


def test_keys_that_stay_refused_end_in_an_error_that_names_them(server: MinioServer) -> None:
    storage = reach(server, keys=FixedKeys("nobody", "nothing-at-all"), retry_s=0.5)
    with pytest.raises(StorageUnavailableError, match="refuses the credentials from the test"):
        storage.write("x", b"")


@pytest.mark.parametrize("hours", [-2, 3])
def test_a_clock_that_is_hours_off_is_noticed_and_made_up_for(
    server: MinioServer, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    storage = reach(server, wall_clock=lambda: time.time() + hours * 3600)
    storage.write("skewed", b"x")
    assert storage.read("skewed") == b"x"
    assert [record.message for record in caplog.records if "set both by NTP" in record.message]


def test_uncorrectable_clock_skew_is_an_error_with_remedy(server: MinioServer) -> None:
    with AnsweringProxy(server.endpoint, lambda method, target, forward: (403, "RequestTimeTooSkewed")) as proxy:
        storage = reach(server, endpoint=proxy.endpoint, retry_s=0.5)
        with pytest.raises(StorageUnavailableError, match=r"clock.*set both by NTP"):
            storage.write("x", b"")


def test_a_bucket_that_is_gone_is_an_error_with_the_remedy(server: MinioServer) -> None:
    gone = server.client("was-never-there", create_bucket=False)
    with pytest.raises(StorageError, match=r"cannot write s3://was-never-there/x: the bucket does not exist"):
        S3Storage(gone).write("x", b"")


def test_an_object_replaced_while_it_is_fetched_is_not_mixed(server: MinioServer, large: Path) -> None:
    reach(server).put_file(large, "replaced")
    fetched: list[str] = []

    def rule(method: str, target: str, forward: Callable[[], object]) -> tuple[int, str] | None:
        fetched.append(target)
        if len(fetched) == 2:
            reach(server).put_file(large, "replaced")
            reach(server).write("replaced", b"y" * large.stat().st_size)
        return None

    with AnsweringProxy(server.endpoint, rule) as proxy:
        storage = reach(server, endpoint=proxy.endpoint)
        with pytest.raises(StorageError, match="was replaced while it was read"):
            storage.get_file("replaced", large.with_name("back"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_full_server_disk_is_named_and_survived(tmp_path: Path, large: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    mount(data, "size=24m")
    try:
        with MinioServer(tmp_path, data=data) as server:
            server.storage("s3://faults")
            impatient = reach(server, retry_s=0.2)
            with pytest.raises(StorageUnavailableError, match=r"disk or quota is full|full"):
                impatient.put_file(large, "full")
            assert impatient.list() == []
            waits = Waits(lambda: mount(data, "remount,size=200m"))
            patient = reach(server, sleep=waits)
            patient.put_file(large, "full")
            assert waits.delays
            assert same(patient, "full", large)
    finally:
        subprocess.run(["umount", "--lazy", data], check=True)


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_local_disk_is_named_with_what_is_needed(server: MinioServer, tmp_path: Path, large: Path) -> None:
    storage = reach(server)
    storage.put_file(large, "to-fetch")
    small = tmp_path / "small"
    small.mkdir()
    mount(small, "size=8m")
    try:
        with pytest.raises(StorageError, match="no space left on the device"):
            storage.get_file("to-fetch", small / "back")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
