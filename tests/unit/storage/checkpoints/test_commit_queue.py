from __future__ import annotations

import logging
import threading

import pytest
from memory_storage import MemoryStorage

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.checkpoints.commit_queue import CommitQueue, size_text
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore

WAIT_S = 60.0


class Gate:
    """Holds every write of a manifest until it is opened."""

    def __init__(self, storage):
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()
        storage.before = self

    def __call__(self, name, key):
        if name == "write_new" and "manifest" in key:
            self.arrived.release()
            assert self.open.wait(WAIT_S)


class World:
    def __init__(self, folder, **options):
        self.storage = MemoryStorage()
        self.store = RemoteCheckpointStore(self.storage, scratch=folder)
        self.told = []
        self.superseded = None
        self.writer = CommitQueue(
            self.store,
            attempt=1,
            rules=options.pop("rules", CheckpointRules()),
            known=[],
            announce=lambda info: self.told.append(("committed", info.name, self.exists(info.name))),
            deleted=lambda names: self.told.append(("deleted", *names)),
            check=self.check,
            **options,
        )
        self.source = folder / "source"
        self.source.mkdir()

    def exists(self, name):
        return f"{name}/.trialpod-manifest.json" in self.storage.values

    def check(self):
        if self.superseded is not None:
            raise self.superseded

    def take(self, index):
        self.writer.wait_for_room()
        (self.source / "weights").write_bytes(b"%d" % index * 1000)
        size = self.store.snapshot(index, self.source)
        name = f"checkpoint_{index:06d}"
        self.writer.submit(
            CheckpointInfo(name=name, index=index, iteration=index, metrics={}, attempt=1, size=size, time=1.0)
        )


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.writer.close()
    made.store.close()


def forever():
    return None


def test_checkpoints_are_committed_in_order_then_announced(world):
    for index in range(5):
        world.take(index)
    assert world.writer.drain(forever)
    assert world.told == [("committed", f"checkpoint_{index:06d}", True) for index in range(5)]


def test_taking_a_snapshot_does_not_wait_for_the_storage(world):
    gate = Gate(world.storage)
    world.take(0)
    gate.arrived.acquire()
    world.take(1)
    world.take(2)
    assert world.told == []
    assert [info.index for info in world.writer.pending] == [0, 1, 2]
    gate.open.set()
    assert world.writer.drain(forever)


class Said(logging.Handler):
    """Tells when something was logged."""

    def __init__(self):
        super().__init__()
        self.event = threading.Event()

    def emit(self, record):
        self.event.set()


def test_full_queue_delays_the_next_snapshot_and_says_so_once(tmp_path, caplog, request):
    now = [0.0]
    world = World(tmp_path, clock=lambda: now[-1])
    request.addfinalizer(world.writer.close)
    said = Said()
    logging.getLogger("trialpod").addHandler(said)
    request.addfinalizer(lambda: logging.getLogger("trialpod").removeHandler(said))
    gate = Gate(world.storage)
    for index in range(3):
        world.take(index)
        if index == 0:
            gate.arrived.acquire()
    taken = threading.Event()

    def take_two_more():
        world.take(3)
        taken.set()
        world.take(4)

    thread = threading.Thread(target=take_two_more)
    thread.start()
    assert not taken.wait(0.2)
    assert "slower" not in caplog.text  # it has waited less than a second
    now.append(1.5)
    assert said.event.wait(WAIT_S)
    gate.open.set()
    assert taken.wait(WAIT_S)
    thread.join(WAIT_S)
    assert world.writer.drain(forever)
    assert len(world.told) == 5
    assert caplog.text.count("slower than the trial makes them") == 1


def test_the_rules_are_applied_after_the_announcement(tmp_path):
    world = World(tmp_path, rules=CheckpointRules(num_to_keep=1))
    for index in range(3):
        world.take(index)
    assert world.writer.drain(forever)
    assert world.told == [
        ("committed", "checkpoint_000000", True),
        ("committed", "checkpoint_000001", True),
        ("deleted", "checkpoint_000000"),
        ("committed", "checkpoint_000002", True),
        ("deleted", "checkpoint_000001"),
    ]
    assert [info.index for info in world.store.committed()] == [2]
    world.store.close()


def test_what_may_heal_is_retried_and_said(world, caplog):
    left = [2]

    def fault(name, key):
        if name == "put_file" and left[0]:
            left[0] -= 1
            raise StorageUnavailableError("connection refused")

    world.storage.before = fault
    with caplog.at_level(logging.WARNING):
        world.take(0)
        assert world.writer.drain(forever)
    assert world.told == [("committed", "checkpoint_000000", True)]
    assert caplog.text.count("cannot be stored since") == 1
    assert "connection refused; training continues, 1 checkpoint(s) (1.0 kB) are kept" in caplog.text
    assert "the storage answers again" in caplog.text


def test_settling_does_not_wait_for_unreachable_storage(world):
    healed = threading.Event()

    def fault(name, key):
        if not healed.is_set():
            raise StorageUnavailableError("connection refused")

    world.storage.before = fault
    world.take(0)
    world.writer.wait_committed_or_unavailable(0)
    assert world.told == []
    healed.set()
    assert world.writer.drain(forever)
    world.writer.wait_committed_or_unavailable(0)


@pytest.mark.parametrize("error", [StorageError("access denied"), CheckpointError("taken"), RuntimeError("bug")])
def test_what_cannot_heal_is_raised_to_the_training(world, error, tmp_path):
    def fault(name, key):
        if name == "put_file":
            raise error

    world.storage.before = fault
    world.take(0)
    with pytest.raises(type(error), match=str(error)):
        world.writer.drain(forever)
    with pytest.raises(type(error)):
        world.writer.wait_for_room()
    with pytest.raises(type(error)):
        world.writer.check()


def test_after_being_superseded_the_storage_is_not_touched(world):
    class Superseded(BaseException): ...

    gate = Gate(world.storage)
    world.take(0)
    gate.arrived.acquire()
    world.take(1)
    world.superseded = Superseded()
    gate.open.set()
    with pytest.raises(Superseded):
        world.writer.drain(forever)
    assert not world.exists("checkpoint_000001")


def test_when_time_runs_out_nothing_more_is_committed(world, caplog):
    gate = Gate(world.storage)
    world.take(0)
    gate.arrived.acquire()
    world.take(1)
    assert not world.writer.drain(lambda: 0.0)
    assert "checkpoint_000000 and checkpoint_000001 cannot be stored in the time that is left" in caplog.text
    gate.open.set()
    world.writer._thread.join(WAIT_S)
    assert not world.exists("checkpoint_000001")


def test_long_uploads_show_their_progress(tmp_path, caplog):
    now = [0.0]
    world = World(tmp_path, clock=lambda: now[0])

    def slow(name, key):
        if name == "put_file":
            now[0] += 7

    world.storage.before = slow
    with caplog.at_level(logging.INFO):
        world.take(0)
        assert world.writer.drain(forever)
    assert "checkpoint_000000: 1.0 kB of 1.0 kB stored after 7 s" in caplog.text
    world.store.close()


def test_sizes_are_for_people():
    assert [size_text(n) for n in (5, 1500, 2_500_000, 3e9)] == ["5 bytes", "1.5 kB", "2.5 MB", "3.0 GB"]


def test_removal_waits_for_permission_and_asks_again(tmp_path):
    asked = []
    answered = threading.Semaphore(0)

    def ask(names, told):
        asked.append((names, told))
        answered.release()

    world = World(tmp_path, rules=CheckpointRules(num_to_keep=1), ask=ask)
    world.take(0)
    world.take(1)
    assert answered.acquire(timeout=WAIT_S)
    first, told = asked[-1]
    assert first == ["checkpoint_000000"]
    assert world.exists("checkpoint_000000")
    told(first, [])
    assert world.writer.drain(forever)
    world.take(2)
    assert answered.acquire(timeout=WAIT_S)
    second, told = asked[-1]
    assert second == ["checkpoint_000000", "checkpoint_000001"]
    told(second, second)
    assert world.writer.drain(forever)
    assert [world.exists(f"checkpoint_{index:06d}") for index in range(3)] == [False, False, True]
    assert [names for kind, *names in world.told if kind != "committed"] == [second]
    world.writer.close()
    world.store.close()


def test_terminated_attempt_does_not_wait_for_permission(tmp_path):
    world = World(tmp_path, rules=CheckpointRules(num_to_keep=1), ask=lambda names, told: None)
    world.take(0)
    world.take(1)
    left = iter([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert world.writer.drain(lambda: next(left, 0.0))
    assert world.exists("checkpoint_000000")
    world.writer.close()
    world.store.close()
