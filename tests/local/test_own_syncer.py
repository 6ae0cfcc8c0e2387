"""A script's own syncer copies the experiment that runs here, as in Ray Tune 2.0 to 2.6."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.legacy.syncer import Syncer

pytestmark = pytest.mark.local


def train(config: dict[str, Any]) -> None:
    Path("note.txt").write_text("kept")
    for step in range(3):
        tune.report({"score": config["x"] + step})


class Copies(Syncer):
    """Copies in the background, as far as anybody can tell."""

    def __init__(self, place: Path, sync_period: float = 300.0) -> None:
        super().__init__(sync_period)
        self.place = place
        self.calls: list[str] = []
        self._waiting: tuple[str, str] | None = None

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        self.calls.append("up")
        self._waiting = local_dir, remote_dir
        return True

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        raise AssertionError("nothing is to be copied back")

    def delete(self, remote_dir: str) -> bool:
        raise AssertionError("nothing is to be removed")

    def wait(self) -> None:
        if self._waiting is not None:
            local, remote = self._waiting
            shutil.copytree(local, self.place / remote.removeprefix("mine://"), dirs_exist_ok=True)
            self._waiting = None


class Broken(Copies):
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        raise OSError("no way there")


def fit(syncer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tune.ResultGrid:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    sync = tune.SyncConfig(upload_dir="mine://bucket/runs", syncer=syncer)
    run = tune.RunConfig(name="exp", sync_config=sync, verbose=0)
    return tune.Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=run).fit()


def test_it_has_everything_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncer = Copies(tmp_path / "there")
    grid = fit(syncer, tmp_path, monkeypatch)
    assert [result.metrics["score"] for result in grid] == [3, 4]
    assert Path(grid.experiment_path).is_relative_to(tmp_path / "home")
    copied = tmp_path / "there/bucket/runs/exp"
    assert len(list(copied.glob("train_*/note.txt"))) == 2
    rows = [file.read_text().splitlines()[-1] for file in sorted(copied.glob("train_*/result.json"))]
    assert sorted(json.loads(row)["score"] for row in rows) == [3, 4]
    assert syncer.calls == ["up", "up"], "with the first result, and at the end: the period is long"
    again = tune.Tuner.restore(str(copied), train).get_results()
    assert [result.metrics["score"] for result in again] == [3, 4]


def test_one_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        grid = fit(Broken(tmp_path), tmp_path, monkeypatch)
    assert not grid.errors
    assert "Broken.sync_up: OSError: no way there" in caplog.text
