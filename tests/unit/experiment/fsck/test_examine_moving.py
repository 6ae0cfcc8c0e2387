"""The examination of an experiment that runs, in storage that changes under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.storage.base import KeyMissingError
from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.experiment.fsck import examine as module
from trialpod_operator.experiment.fsck.examine import _Examiner
from trialpod_operator.experiment.replica.replica import Replica


class Remote(DirectoryStorage):
    """Storage that can only be read by copying from it."""

    def local_path(self, key: str) -> Path | None:
        return None


@pytest.mark.parametrize(("failures", "read"), [(0, True), (2, True), (100, False)])
def test_journal_replaced_while_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, read: bool
) -> None:
    pulls: list[Replica] = []

    def pull(self: Replica, **_: object) -> None:
        pulls.append(self)
        if len(pulls) <= failures:
            raise KeyMissingError("cannot read the journal: there is no such object")

    monkeypatch.setattr(module.Replica, "pull", pull)
    examiner = _Examiner(Remote(tmp_path), verify=False)
    if read:
        with pytest.raises(Exception, match="experiment"):
            examiner._read()  # of an empty folder
        assert len(pulls) == failures + 1
    else:
        with pytest.raises(KeyMissingError):
            examiner._read()
