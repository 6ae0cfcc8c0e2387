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
    made = Session(TrialInfo(experiment="e", trial_name="n", trial_id="i"), Recorder(tmp_path))
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
    assert "000003" in os.path.basename(folder)
    tune.report(loss=2)
    tune.report(loss=3)
    names = [row["checkpoint_dir_name"] for row in channel(session).sent]
    assert names == [None, "checkpoint_000000", None]
    assert (tmp_path / "checkpoint_000000" / "n").read_text() == "3"
    assert not os.path.exists(folder)


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
