from __future__ import annotations

import threading

import pytest

from trialpod.storage.parallel import run_all


def test_every_job_runs_once():
    done = []
    run_all([lambda number=number: done.append(number) for number in range(50)], 4)
    assert sorted(done) == list(range(50))


def test_jobs_run_at_the_same_time():
    barrier = threading.Barrier(3)
    run_all([lambda: barrier.wait(60) and None for _ in range(3)], 3)


def test_after_an_error_nothing_more_starts_and_it_is_raised():
    done = []

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_all([fail, lambda: done.append(1)], 1)
    assert done == []


def test_what_the_tick_raises_is_raised_at_once():
    release = threading.Event()

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([lambda: release.wait(60) and None], 2, tick=stop, tick_s=0.001)
    release.set()
