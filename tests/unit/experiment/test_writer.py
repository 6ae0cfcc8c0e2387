from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trialpod.errors import ExperimentLockedError
from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.experiment.writer import LEASE_S, Writer, WriterClaim


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path)


class Time:
    """Time that passes only when somebody sleeps; then `meanwhile` happens."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self.meanwhile = meanwhile

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


def elsewhere(name: str) -> Writer:
    return Writer(token=name, host=name, pid=1, machine=f"machine {name}", started="1")


def claim(storage: DirectoryStorage, me: Writer | None = None, time: Time | None = None) -> WriterClaim:
    time = time or Time()
    return WriterClaim(storage, me, time.clock, time.sleep)


def never(message: str) -> None:
    pytest.fail(f"it waited: {message}")


def test_one_that_released_is_followed_at_once(storage: DirectoryStorage) -> None:
    first = claim(storage, elsewhere("a"))
    first.acquire(never)
    first.release()
    claim(storage, elsewhere("b")).acquire(never)


def test_a_live_local_process_is_distinguished_from_a_dead_one(storage: DirectoryStorage) -> None:
    claim(storage).acquire(never)
    with pytest.raises(ExperimentLockedError, match=f"process {os.getpid()} on .* is running this experiment"):
        claim(storage).acquire(never)

    me = Writer.of_this_process()
    dead = Writer(token="dead", host=me.host, pid=me.pid, machine=me.machine, started="a process before")
    storage.delete(".trialpod/writer.json")
    claim(storage, dead).acquire(never)
    claim(storage).acquire(never)


def test_a_process_follows_its_own_claim_left_in_the_storage(storage: DirectoryStorage) -> None:
    first = claim(storage)
    first.acquire(never)
    first.release(reachable=False)
    second = claim(storage)
    second.acquire(never)
    assert second.beat()
    with pytest.raises(ExperimentLockedError):
        claim(storage).acquire(never)


def test_one_elsewhere_that_still_counts_is_left_alone(storage: DirectoryStorage) -> None:
    first = claim(storage, elsewhere("a"))
    first.acquire(never)
    waits: list[str] = []
    with pytest.raises(ExperimentLockedError, match="process 1 on a is running this experiment"):
        claim(storage, elsewhere("b"), Time(first.beat)).acquire(waits.append)
    assert len(waits) == 1
    assert first.beat()


def test_stalled_remote_writer_is_replaced_and_notices(storage: DirectoryStorage) -> None:
    first = claim(storage, elsewhere("a"))
    first.acquire(never)
    time = Time()
    second = claim(storage, elsewhere("b"), time)
    second.acquire(lambda _message: None)
    assert time.now >= LEASE_S
    assert not first.beat()
    first.release()
    assert second.beat()


def test_one_that_releases_while_it_is_watched_is_followed(storage: DirectoryStorage) -> None:
    first = claim(storage, elsewhere("a"))
    first.acquire(never)
    time = Time(first.release)
    claim(storage, elsewhere("b"), time).acquire(lambda _message: None)
    assert time.now < LEASE_S
