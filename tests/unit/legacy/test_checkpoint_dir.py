from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_recorder import Recorder

from trialpod import tune
from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune import session as sessions
from trialpod.tune.session import Session, TrialInfo


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    info = TrialInfo(experiment="e", trial_name="n", trial_id="i", trial_dir=str(tmp_path))
    made = Session(info, Recorder(tmp_path))
    sessions.install(made)
    yield made
    sessions.install(None)


def channel(session: Session) -> Recorder:
    assert isinstance(session.channel, Recorder)
    return session.channel


def test_what_is_written_in_the_block_belongs_to_the_next_report(session: Session, tmp_path: Path) -> None:
    tune.report(loss=1)
    with tune.checkpoint_dir(step=3) as folder:
        Path(folder, "n").write_text("3")
    assert folder.split("/")[-2:] == [tmp_path.name, "checkpoint_000003"]
    tune.report(loss=2)
    tune.report(loss=3)
    names = [row["checkpoint_dir_name"] for row in channel(session).sent]
    assert names == [None, "checkpoint_000000", None]
    assert (tmp_path / "checkpoint_000000" / "n").read_text() == "3"


def test_a_checkpoint_after_the_last_report_belongs_to_that_one(session: Session, tmp_path: Path) -> None:
    tune.report(loss=1)
    with tune.checkpoint_dir(step=1) as folder:
        Path(folder, "n").write_text("1")
    session.flush_offered_checkpoint()
    session.flush_offered_checkpoint()
    assert channel(session).announced == ["checkpoint_000000"]
    assert (tmp_path / "checkpoint_000000" / "n").exists()


def test_a_block_that_raises_leaves_no_checkpoint(session: Session) -> None:
    with pytest.raises(RuntimeError, match="full"), tune.checkpoint_dir(step=1) as folder:
        raise RuntimeError("full")
    tune.report(loss=1)
    assert channel(session).copied == []
    assert not os.path.exists(folder)


def test_a_folder_that_vanishes_in_the_block_is_an_error(session: Session) -> None:
    with pytest.raises(CheckpointError, match="was removed inside its block"), tune.checkpoint_dir(step=1) as folder:
        shutil.rmtree(folder)


class TestReadAgain:
    """Scripts remember the path of the best model, and load it after the training."""

    def write(self, step: int, size: int = 1) -> Path:
        with tune.checkpoint_dir(step=step) as folder:
            Path(folder, "model").write_text(str(step) * size)
        tune.report(loss=step)
        return Path(folder, "model")

    def test_each_is_there_after_later_reports(self, session: Session, tmp_path: Path) -> None:
        written = [self.write(step) for step in (5, 6, 7)]
        tune.report(loss=1)
        assert [path.read_text() for path in written] == ["5", "6", "7"]
        folders = [path.parent for path in written]
        assert [folder.is_symlink() for folder in folders] == [True, True, False]  # the checkpoint itself has it
        assert folders[0].resolve() == tmp_path / "checkpoint_000000"

    def test_a_removed_checkpoint_cannot_be_read(self, session: Session, tmp_path: Path) -> None:
        first, _ = self.write(1), self.write(2)
        shutil.rmtree(tmp_path / "checkpoint_000000")
        assert not first.exists()

    def test_the_same_number_gets_an_empty_folder(self, session: Session, tmp_path: Path) -> None:
        self.write(1), self.write(1), self.write(2)
        with tune.checkpoint_dir(step=1) as folder:
            assert os.listdir(folder) == []
            Path(folder, "other").touch()
        with tune.checkpoint_dir(step=1) as folder:
            assert os.listdir(folder) == []
        tune.report(loss=1)
        assert (tmp_path / "checkpoint_000001" / "model").read_text() == "1"
        assert os.listdir(tmp_path / "checkpoint_000003") == []

    def test_of_checkpoints_elsewhere_old_ones_go_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trialpod.tune.checkpoints.written_folders.MAX_BYTES", 20)
        info = TrialInfo(experiment="e", trial_name="n", trial_id="i", trial_dir="/none/trial")
        sessions.install(Session(info, Recorder()))
        written = [self.write(step, size=9) for step in range(1, 6)]
        assert [path.exists() for path in written] == [False, False, True, True, True]
        sessions.install(None)
        assert not written[-1].parent.parent.parent.exists()

    def test_nothing_stays_when_the_function_has_ended(self, session: Session) -> None:
        path = self.write(1)
        sessions.install(None)
        assert not path.parent.parent.parent.exists()

    def test_a_forked_child_removes_nothing(self, session: Session) -> None:
        path = self.write(1)
        child = os.fork()
        if child == 0:
            sessions.install(None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert path.exists()

    def test_a_folder_of_make_checkpoint_dir_stays_too(self, session: Session) -> None:
        folder = tune.make_checkpoint_dir(4)
        Path(folder, "n").write_text("4")
        tune.save_checkpoint(folder)
        tune.report(loss=1)
        self.write(5)
        assert Path(folder, "n").read_text() == "4"


def test_a_step_that_is_no_number_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInputError, match="step=None"), tune.checkpoint_dir(step=None):  # type: ignore[arg-type]
        pass


def test_outside_a_trial_it_warns() -> None:
    with pytest.warns(UserWarning, match="outside"), tune.checkpoint_dir(step=1) as folder:
        assert folder == os.getcwd()


def test_a_folder_of_the_users_is_kept_and_stays(session: Session, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    tune.save_checkpoint(str(own))
    tune.report(loss=1)
    assert own.exists()
    assert channel(session).copied == [str(own)]
    with pytest.raises(CheckpointError, match="no such folder"):
        tune.save_checkpoint(str(tmp_path / "none"))
