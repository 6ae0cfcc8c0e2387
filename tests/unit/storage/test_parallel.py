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


def test_what_the_tick_raises_comes_after_the_running_jobs():
    ticked = threading.Event()
    begun, ended = [], []

    def job():
        begun.append(1)
        assert ticked.wait(60)
        sum(range(3_000_000))
        ended.append(1)

    def stop():
        ticked.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([job] * 50, 2, tick=stop, tick_s=0.001)
    assert len(ended) == len(begun) < 50


class TestThreadLimit:
    """A process that may have no more threads."""

    @pytest.fixture(params=[0, 1])
    def startable(self, request, monkeypatch):
        start, started = threading.Thread.start, []

        def limited(thread):
            if len(started) == request.param:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)

    def test_jobs_run_in_the_threads_that_there_are(self, startable):
        done = []
        run_all([lambda number=number: done.append(number) for number in range(10)], 4, tick=lambda: None)
        assert done == list(range(10))

    def test_errors_are_raised(self, startable):
        def fail():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            run_all([fail, fail], 4)
