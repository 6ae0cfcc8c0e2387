from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec

from trialpod_operator.engine.trial import ERROR, PENDING, TERMINATED, Trial
from trialpod_operator.experiment.trial_files import SLICE, TrialFiles


def trial(number: int = 0) -> Trial:
    return Trial(
        trial_id=f"a_{number:05}",
        index=number,
        tag="0_x=1",
        params=msgspec.msgpack.encode({"x": 1}),
        created_at=1_700_000_000.0,
    )


class TestNewConfig:
    def test_of_a_removed_folder_is_written_again(self, tmp_path: Path) -> None:
        warnings: list[str] = []
        files = TrialFiles(tmp_path, "train", lambda _id, message: warnings.append(message))
        one = trial()
        files.create(one)
        shutil.rmtree(files.path(one))
        one.set_config(msgspec.msgpack.encode({"x": 2}), one.tag)
        files.attempt_started(one)
        files.flush()
        assert json.loads((files.path(one) / "params.json").read_text()) == {"x": 2}
        assert len(warnings) == 1
        assert "was removed" in warnings[0]

    def test_without_room_is_written_when_there_is_some(self, tmp_path: Path) -> None:
        warnings: list[str] = []
        files = TrialFiles(tmp_path, "train", lambda _id, message: warnings.append(message))
        one = trial()
        files.create(one)
        (files.path(one) / "params.json.tmp").mkdir()
        one.set_config(msgspec.msgpack.encode({"x": 2}), one.tag)
        files.attempt_started(one)
        files.flush()
        assert len(warnings) == 1
        (files.path(one) / "params.json.tmp").rmdir()
        files.flush()
        assert json.loads((files.path(one) / "params.json").read_text()) == {"x": 2}


class TestFlushInSlices:
    def test_what_comes_between_two_slices_is_kept(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path, "train")
        trials = [trial(number) for number in range(2 * SLICE)]
        for each in trials:
            files.create(each)
            files.append(each, [{"training_iteration": 1}])
        slices = files.flush_in_slices()
        next(slices)
        for each in trials:
            files.append(each, [{"training_iteration": 2}])
        for each in trials[::3]:
            files.ended(each)
        for _ in slices:
            pass
        files.flush()
        for each in trials:
            lines = (files.path(each) / "result.json").read_text().splitlines()
            assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2]

    def test_a_slice_writes_few_trials(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path, "train")
        trials = [trial(number) for number in range(3 * SLICE)]
        for each in trials:
            files.create(each)
            files.append(each, [{"training_iteration": 1}])
        written = [
            sum((files.path(each) / "result.json").exists() for each in trials) for _ in files.flush_in_slices()
        ]
        assert written == [SLICE, 2 * SLICE, 3 * SLICE]


class TestLinesAfterTheEnd:
    def test_trials_whose_last_lines_come_late_are_told_once(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path, "train")
        one, other = trial(0), trial(1)
        for each in (one, other):
            files.create(each)
            each.status = TERMINATED
        (files.path(one) / "result.json").mkdir()
        for each in (one, other):
            files.append(each, [{"training_iteration": 1}])
            files.ended(each)
        files.flush()
        assert files.completed() == []
        (files.path(one) / "result.json").rmdir()
        files.flush()
        assert json.loads((files.path(one) / "result.json").read_text())["training_iteration"] == 1
        assert files.completed() == [one]
        files.flush()
        assert files.completed() == []
        assert files.offsets() == {}, "its files are closed"

    def test_a_trial_that_is_retried_meanwhile_continues(self, tmp_path: Path) -> None:
        files = TrialFiles(tmp_path, "train")
        one = trial()
        files.create(one)
        one.status = ERROR
        (files.path(one) / "result.json").mkdir()
        files.append(one, [{"training_iteration": 1}])
        files.ended(one)
        one.status = PENDING
        (files.path(one) / "result.json").rmdir()
        files.append(one, [{"training_iteration": 2}])
        files.flush()
        assert files.completed() == []
        lines = (files.path(one) / "result.json").read_text().splitlines()
        assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2]
        assert files.offsets().keys() == {one.trial_id}


class TestFailures:
    def test_of_an_earlier_operator_are_kept(self, tmp_path: Path) -> None:
        bucket, here = tmp_path / "bucket", tmp_path / "here"
        one = trial()
        before = TrialFiles(bucket, "train")
        before.create(one)
        one.failures, one.error = 1, "the first"
        before.failed(one)
        before.close()

        def fetch(keys: list[str]) -> None:
            for key in keys:
                if (bucket / key).exists():
                    (here / key).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(bucket / key, here / key)

        files = TrialFiles(here, "train", fetch=fetch)
        files.resume([one])
        one.failures, one.error = 2, "the second"
        files.failed(one)  # in a record after the snapshot
        assert files.waiting() == {one.trial_id}
        fetch(files.absent()[one.trial_id])
        files.arrived([one.trial_id])
        one.failures, one.error = 3, "the third"
        files.failed(one)
        text = (files.path(one) / "error.txt").read_text()
        lines = [line.partition(" (")[0] for line in text.splitlines()]
        assert lines == ["Failure # 1", "the first", "Failure # 2", "the second", "Failure # 3", "the third"]
