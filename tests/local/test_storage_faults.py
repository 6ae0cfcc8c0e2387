"""Processes killed at any instruction, full disks, and locks that children inherit."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import sys

import pytest

from trialpod.errors import ExperimentLockedError, StorageError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.journal.journal import Journal
from trialpod.storage.lock import ExperimentLock
from trialpod.storage.trial_log import TrialLog

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

JOURNAL_WRITER = """
import os, struct, sys
from pathlib import Path
from trialpod.storage.journal.journal import Journal
journal = Journal.open(Path(sys.argv[1]))
number = journal.position
while True:
    number += 1
    assert journal.append(struct.pack("<Q", number) * (1 + number % 200)) == number
    os.write(1, struct.pack("<Q", number))
    if number % 37 == 0:
        journal.write_snapshot(struct.pack("<Q", number))
    elif number % 11 == 0:
        journal.sync()
"""

CHECKPOINT_WRITER = """
import os, sys
from pathlib import Path
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.directory import DirectoryStorage
store = open_checkpoints(DirectoryStorage(sys.argv[1]))
index = store.first_free_index(0)
while True:
    folder = store.begin(index)
    for name in range(4):
        (folder / str(name)).write_bytes(bytes([index % 256]) * 50_000)
    store.commit(index, iteration=index, metrics={}, attempt=1, time=0.0)
    os.write(1, b"%d\\n" % index)
    if index % 3 == 2:
        store.delete("checkpoint_%06d" % (index - 2))
        os.write(1, b"-%d\\n" % (index - 2))
    index += 1
"""

LOCK_PARENT = """
import subprocess, sys
from pathlib import Path
from trialpod.storage.lock import ExperimentLock
lock = ExperimentLock(Path(sys.argv[1])).acquire()
child = subprocess.Popen(["cat"], stdin=sys.stdin, stdout=sys.stdout, pass_fds=[lock.fileno()])
print(child.pid, flush=True)
child.wait()
"""


def start(script, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, bufsize=0, **options
    )


def kill_after(process, acknowledgements, size):
    """Kill the writer once it has acknowledged so many steps, at whatever instruction; return all that it wrote."""
    said = b""
    while len(said) < acknowledgements * size:
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, "the writer ended by itself"
        said += piece
    process.kill()
    with process.stdout:
        said += process.stdout.read()
    assert process.wait() == -signal.SIGKILL
    return said


def test_no_acknowledged_record_is_lost_or_doubled_by_kill(tmp_path):
    random_source = random.Random(7)
    acknowledged = 0
    for _ in range(30):
        said = kill_after(start(JOURNAL_WRITER, tmp_path), random_source.randrange(1, 120), 8)
        numbers = [number for (number,) in struct.iter_unpack("<Q", said[: len(said) // 8 * 8])]
        # One record may have been written and not acknowledged.
        assert numbers[0] in (acknowledged + 1, acknowledged + 2)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        acknowledged = numbers[-1]
        reader = Journal.open(tmp_path, read_only=True)
        start_at = struct.unpack("<Q", reader.snapshot)[0] if reader.snapshot else 0
        found = [struct.unpack_from("<Q", record)[0] for record in reader.records()]
        assert found == list(range(start_at + 1, start_at + 1 + len(found)))
        assert reader.position == start_at + len(found)
        assert reader.position in (acknowledged, acknowledged + 1)


def test_killed_writer_leaves_whole_checkpoints_or_none(tmp_path):
    random_source = random.Random(11)
    committed: set[int] = set()
    for _ in range(12):
        said = kill_after(start(CHECKPOINT_WRITER, tmp_path), random_source.randrange(1, 12), 2)
        deleted = set()
        for line in said.split(b"\n")[:-1]:
            number = int(line) if line != b"-0" else 0
            if line.startswith(b"-"):
                deleted.add(-number)
            else:
                committed.add(number)
        committed -= deleted
        store = open_checkpoints(DirectoryStorage(tmp_path))
        infos = store.committed()
        found = {info.index for info in infos}
        # The last step may have been done and not acknowledged: one commit more, or one deletion.
        assert len(found ^ committed) <= 1
        for info in infos:
            for file in store.fetch(info).glob("[0-9]"):
                assert file.read_bytes() == bytes([info.index % 256]) * 50_000
        assert all(name.startswith(".trialpod-staging-") for name in store.sweep([info.name for info in infos]))
        assert {info.index for info in store.committed()} == found
        committed = found


def test_lock_is_held_until_last_inheriting_child_ends(tmp_path):
    parent = start(LOCK_PARENT, tmp_path, stdin=subprocess.PIPE)
    with parent.stdout, parent.stdin:
        child = int(parent.stdout.readline())
        with pytest.raises(ExperimentLockedError, match=rf"process {parent.pid} has held it since"):
            ExperimentLock(tmp_path).acquire()
        parent.kill()
        parent.wait()
        with pytest.raises(
            ExperimentLockedError, match=rf"process {parent.pid} \(.*\) ended, but .* still run: {child}\."
        ):
            ExperimentLock(tmp_path).acquire()
        told = []

        def on_wait(message):
            told.append(message)
            parent.stdin.close()  # ends the child

        with ExperimentLock(tmp_path).acquire(60, on_wait):
            assert len(told) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where mounting is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small file system needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_no_half_checkpoint_and_says_size(small_disk, tmp_path):
    store = open_checkpoints(DirectoryStorage(small_disk / "trial"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "small").write_bytes(b"x" * 100_000)
    store.snapshot(0, source)
    first = store.commit(0, iteration=1, metrics={}, attempt=1, time=0.0)
    (source / "weights").write_bytes(os.urandom(4_000_000))
    with pytest.raises(
        StorageError, match=r"no space left on the device \(\d+\.\d kB needed, \d.* free\); free some"
    ):
        store.snapshot(1, source)
    assert os.listdir(small_disk / "trial") == ["checkpoint_000000"]
    assert store.latest_valid([first]) == (first, [])
    (source / "weights").write_bytes(os.urandom(400_000))
    store.snapshot(1, source)
    assert store.commit(1, iteration=2, metrics={}, attempt=1, time=0.0).index == 1


def test_full_disk_leaves_the_journal_usable(small_disk):
    journal = Journal.open(small_disk / "journal")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_500_000)
    written = []

    def append_forever():
        while True:
            record = struct.pack("<Q", len(written)) * 1000
            journal.append(record)
            written.append(record)

    with pytest.raises(StorageError, match="no space left"):
        append_forever()
    assert written
    with pytest.raises(StorageError, match="no space left"):
        journal.write_snapshot(b"s" * 1_000_000)
    ballast.unlink()
    written.append(b"last")
    assert journal.append(b"last") == len(written)
    assert list(journal.records()) == written
    journal.write_snapshot(b"state")
    journal.close()
    journal = Journal.open(small_disk / "journal")
    assert (journal.snapshot, journal.position, list(journal.records())) == (b"state", len(written), [])
    journal.close()


def test_a_full_disk_keeps_results_for_the_next_flush(small_disk):
    log = TrialLog(small_disk / "trial", {"trial_id": "t"})
    log.append([{"a": 1}])
    log.flush()
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    with pytest.raises(StorageError, match="no space left"):
        log.append({"a": i, "text": "x" * 100} for i in range(2, 2000))
    ballast.unlink()
    log.flush()
    lines = (small_disk / "trial" / "result.json").read_bytes().splitlines()
    assert [line.partition(b",")[0] for line in lines] == [b'{"a":%d' % i for i in range(1, 2000)]
    assert len((small_disk / "trial" / "progress.csv").read_bytes().splitlines()) == 2000


def test_a_file_size_limit_is_reported_as_a_storage_error(tmp_path):
    """A limit that works without root: the kernel refuses to grow a file beyond it."""
    store = open_checkpoints(DirectoryStorage(tmp_path / "trial"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(b"x" * 400_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*weights: File too large"):
            store.snapshot(0, source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path / "trial") == []
