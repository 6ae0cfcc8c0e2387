"""Random histories of a trial's checkpoints, with deaths at any call to the storage."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_storage import Died, MemoryStorage

from trialpod.errors import CheckpointError
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.checkpoints.manifest import Manifest, decode
from trialpod.storage.checkpoints.packing import Packing
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.layout import MANIFEST_FILE

pytestmark = pytest.mark.once

FILES = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "c/e", "f"]),
    st.sampled_from([b"", b"one", b"two", b"x" * 50, b"y" * 50]),
    max_size=5,
)
PACKING = Packing(more_than=2, below_bytes=10, pack_bytes=8)


class Histories(RuleBasedStateMachine):
    """Attempts one after another; superseded ones may live on for a while."""

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp(prefix="trialpod-test-"))
        self.storage = MemoryStorage()
        self.attempt = 0
        self.committed: dict[str, dict[str, bytes]] = {}  # what the successful commits were given
        self.known = []
        self.stores = []
        self.next_attempt()

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_attempt(self):
        self.attempt += 1
        self.storage = MemoryStorage(self.storage.values)
        self.store = RemoteCheckpointStore(self.storage, scratch=self.folder, packing=PACKING)
        swept = self.store.sweep([info.name for info in self.known])
        assert not set(swept) & {info.name for info in self.known}
        for name in swept:
            self.committed.pop(name, None)
        self.index = self.store.reserve(0, self.attempt)

    def dies_after(self, calls):
        left = [calls]

        def count(name, key):
            left[0] -= 1
            if left[0] < 0:
                raise Died

        self.storage.before = count

    def source(self, files):
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def commit(self, store, index, files, attempt):
        store.snapshot(index, self.source(files))
        return store.commit(index, iteration=index, metrics={}, attempt=attempt, time=1.0)

    @rule(files=FILES)
    def commits(self, files):
        info = self.commit(self.store, self.index, files, self.attempt)
        self.index += 1
        self.known.append(info)
        self.committed[info.name] = files

    @rule(files=FILES, calls=st.integers(0, 12))
    def commits_and_dies(self, files, calls):
        name = f"checkpoint_{self.index:06d}"
        self.dies_after(calls)
        self.committed[name] = files  # if it is there, then so
        try:
            info = self.commit(self.store, self.index, files, self.attempt)
        except Died:
            pass
        else:
            self.known.append(info)
        self.next_attempt()

    @rule(files=FILES, calls=st.integers(0, 8))
    def commits_with_an_interruption(self, files, calls):
        self.dies_after(calls)
        inner = self.storage.before

        def interrupt(name, key):
            try:
                inner(name, key)
            except Died:
                self.storage.before = lambda name, key: None
                raise StorageUnavailableError("interrupted") from None

        self.storage.before = interrupt
        source = self.source(files)
        self.store.snapshot(self.index, source)
        try:
            info = self.store.commit(self.index, iteration=self.index, metrics={}, attempt=self.attempt, time=1.0)
        except StorageUnavailableError:
            info = self.store.commit(self.index, iteration=self.index, metrics={}, attempt=self.attempt, time=1.0)
        self.storage.before = lambda name, key: None
        self.index += 1
        self.known.append(info)
        self.committed[info.name] = files

    @rule(which=st.integers(0, 9), calls=st.none() | st.integers(0, 6))
    def deletes(self, which, calls):
        if not self.known[:-1]:
            return
        info = self.known[:-1][which % len(self.known[:-1])]
        if calls is not None:
            self.dies_after(calls)
        with contextlib.suppress(Died):
            self.store.delete(info.name, attempt=self.attempt)
        self.storage.before = lambda name, key: None
        present = f"{info.name}/.trialpod-manifest.json" in self.storage.values
        if not present:
            self.known.remove(info)
            self.committed.pop(info.name)
        if calls is not None:
            self.next_attempt()

    @rule(files=FILES, calls=st.integers(0, 10))
    def a_superseded_attempt_continues(self, files, calls):
        """The old one is stopped within a commit, its successor takes over and commits, and the old one continues."""
        old, old_storage, attempt, index = self.store, self.storage, self.attempt, self.index
        left = [calls]

        def take_over(name, key):
            left[0] -= 1
            if left[0] == -1:
                self.next_attempt()
                self.commits(files)

        old_storage.before = take_over
        try:
            info = self.commit(old, index, {"old": b"old", **files}, attempt)
        except CheckpointError:
            assert left[0] < 0
        else:
            old_storage.before = lambda name, key: None
            if left[0] >= 0:  # nobody took over: an ordinary commit
                self.index += 1
                self.known.append(info)
                self.committed[info.name] = {"old": b"old", **files}
                return
            # It had committed already when it was stopped; the successor has swept it.
            assert info.name not in {found.name for found in self.store.committed()}
        for info in self.known[:-1]:
            with pytest.raises(CheckpointError):
                old.delete(info.name, attempt=attempt)

    @rule()
    def sweeping_leaves_nothing_but_what_is_needed(self):
        self.next_attempt()
        self.next_attempt()
        needed = set()
        for info in self.known:
            manifest = decode(self.storage.values[f"{info.name}/{MANIFEST_FILE}"], info.name)
            assert isinstance(manifest, Manifest)
            needed |= manifest.object_keys()
        for key in self.storage.values:
            path = key.partition("/")[2]
            assert key in needed or path in (".trialpod-manifest.json", ".trialpod-claim"), key

    @invariant()
    def every_committed_checkpoint_can_be_restored(self):
        if not self.committed and not self.known:
            return
        reader = RemoteCheckpointStore(MemoryStorage(self.storage.values), scratch=self.folder)
        found = reader.committed()
        assert {info.name for info in self.known} <= {info.name for info in found}
        for info in found:
            folder = reader.fetch(info)
            files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
            assert files == self.committed[info.name]
        reader.close()


Histories.TestCase.settings = settings(
    max_examples=30, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
