from __future__ import annotations

import os
import time

import pytest

from trialpod.errors import ExperimentLockedError
from trialpod.storage.lock import ExperimentLock


def test_a_held_lock_is_refused_with_its_holder_and_the_remedy(tmp_path):
    with ExperimentLock(tmp_path):
        message = rf"in use: process {os.getpid()} has held it since .* \(.+\)\. Wait .*choose another"
        with pytest.raises(ExperimentLockedError, match=message):
            ExperimentLock(tmp_path).acquire()


def test_a_released_lock_is_free(tmp_path):
    for _ in range(2):
        lock = ExperimentLock(tmp_path).acquire()
        assert lock.acquire() is lock
        lock.release()
        lock.release()


def test_waiting_names_the_holder_once_and_ends_on_release(tmp_path):
    first = ExperimentLock(tmp_path).acquire()
    told = []
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            first.release()

    with ExperimentLock(tmp_path).acquire(60, told.append, sleep=sleep) as lock:
        assert lock.fileno() >= 0
    assert len(waits) == 3
    assert len(told) == 1
    assert f"process {os.getpid()}" in told[0]


def test_waiting_ends_at_the_timeout(tmp_path):
    with ExperimentLock(tmp_path):
        now = [0.0]
        with pytest.raises(ExperimentLockedError):
            ExperimentLock(tmp_path).acquire(
                10, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
            )
        assert 10 <= now[0] < 11


def test_the_descriptor_is_inheritable_and_gone_after_release(tmp_path):
    lock = ExperimentLock(tmp_path).acquire()
    assert os.get_inheritable(lock.fileno())
    lock.release()
    with pytest.raises(ValueError, match="not held"):
        lock.fileno()


def test_a_holder_on_another_host_is_named_with_its_host(tmp_path):
    with ExperimentLock(tmp_path):
        path = tmp_path / ".trialpod" / "lock"
        path.write_text('{"pid": 4, "host": "elsewhere", "started": 1700000000, "command": "x"}')
        with pytest.raises(
            ExperimentLockedError, match=f"process 4 on host elsewhere.*{time.strftime('%Y', time.localtime(1.7e9))}"
        ):
            ExperimentLock(tmp_path).acquire()


def test_a_lock_that_is_not_signed_yet_is_still_held(tmp_path):
    with ExperimentLock(tmp_path):
        (tmp_path / ".trialpod" / "lock").write_text("")
        with pytest.raises(ExperimentLockedError, match="just locked"):
            ExperimentLock(tmp_path).acquire()
