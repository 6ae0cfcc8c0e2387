"""Two processes that write one experiment into one bucket of a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from minio_server import MinioServer

from trialpod.storage.base import Storage
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod_operator.experiment.replica.replica import FencedError, Replica
from trialpod_operator.experiment.stored import write_stored

pytestmark = [pytest.mark.local, pytest.mark.once]

RESULTS = "trial_0/result.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        yield started


@pytest.fixture
def storage(server: MinioServer, request: pytest.FixtureRequest) -> Iterator[Storage]:
    opened = server.storage(f"s3://tests/{request.node.name.replace('[', '-').replace(']', '')}")
    yield opened
    opened.close()


class Writer:
    """A process with one trial."""

    def __init__(self, directory: Path, storage: Storage) -> None:
        self._file = directory / RESULTS
        self.replica = Replica(directory, storage)
        self.replica.pull()
        write_stored(directory, {})
        self.journal = Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR)
        self._file.parent.mkdir(exist_ok=True)

    def result(self, text: str) -> None:
        self.journal.append(text.encode())
        self.keep(text)

    def keep(self, text: str) -> None:
        with open(self._file, "a") as file:
            file.write(text)
        self.replica.copy_soon("trial_0")

    def snapshot(self) -> None:
        self.journal.write_snapshot(self._file.read_bytes())


@pytest.mark.parametrize("advanced", ["record", "snapshot", "two snapshots"])
@pytest.mark.parametrize("late", ["record", "snapshot", "file"])
def test_who_was_replaced_writes_neither_journal_nor_files(
    storage: Storage, tmp_path: Path, advanced: str, late: str
) -> None:
    stale = Writer(tmp_path / "stale", storage)
    stale.result("1")
    stale.replica.copy()
    right = Writer(tmp_path / "right", storage)
    right.result("2")
    right.replica.copy()
    for _ in range({"record": 0, "snapshot": 1}.get(advanced, 2)):
        right.snapshot()
        right.replica.copy()
    before = storage.sizes()

    stale.keep("x") if late == "file" else stale.result("x")
    if late == "snapshot":
        stale.snapshot()
    with pytest.raises(FencedError):
        stale.replica.copy()

    right.result("3")
    right.replica.copy()
    assert storage.read(RESULTS) == b"123"
    assert set(before) <= set(storage.sizes())
    third = Writer(tmp_path / "third", storage)
    state = (third.journal.snapshot or b"") + b"".join(third.journal.records())
    assert (state, (tmp_path / "third" / RESULTS).read_text()) == (b"123", "123")


def test_files_are_replaced_when_resumed_on_another_machine(storage: Storage, tmp_path: Path) -> None:
    first = Writer(tmp_path / "first", storage)
    first.result("1")
    first.replica.copy()
    second = Writer(tmp_path / "second", storage)
    for number in "234":
        second.result(number)
        second.replica.copy()
    assert storage.read(RESULTS) == b"1234"
