"""Curves that are read from the files of trials, because a snapshot has replaced their results in the journal."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from sample_experiment import SampleExperiment

from trialpod_operator.view import model as model_module
from trialpod_operator.view.curves import Curve
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.results_file import SAMPLE_BYTES, read_columns, read_points, sample_points


def line(number: int, **values: object) -> bytes:
    return json.dumps({"training_iteration": number, "time_total_s": number / 2, **values}).encode() + b"\n"


class TestColumns:
    def test_are_those_of_the_points(self) -> None:
        data = b"".join(line(n, score=n % 7, note="x") for n in range(1, 50)) + b'{"torn'
        points = read_points(data, "score")
        assert read_columns(data, "score", 100) == tuple(map(list, zip(*points, strict=True)))
        columns = read_columns(data, "score", 3)
        assert columns is not None
        assert columns[0] == [1, 2, 3]

    @pytest.mark.parametrize(
        "data", [line(1, other=1), line(1, score="x"), line(1, score=float("nan")), b'{"score": 1}\n', b"{\n"]
    )
    def test_are_none_for_lines_without_the_numbers(self, data: bytes) -> None:
        assert read_columns(line(0, score=1) + data, "score", 10) is None

    @pytest.mark.parametrize("metric", ["training_iteration", "time_total_s"])
    def test_leave_the_axes_to_the_points(self, metric: str) -> None:
        assert read_columns(line(1), metric, 10) is None
        assert len(read_points(line(1), metric)) == 1


class TestFilledCurves:
    @pytest.mark.parametrize("count", [1, 200, 201, 1000, 4097])
    def test_are_those_taken_in_one_by_one(self, count: int) -> None:
        values = [math.sin(n / 9) * (n % 13) for n in range(count)]
        xs = [float(n + 1) for n in range(count)]
        filled, grown = Curve(), Curve()
        filled.fill(xs, xs, values)
        grown.extend(list(zip(xs, xs, values, strict=True)))
        assert filled.count == grown.count == count
        assert filled.points() == grown.points()
        assert filled.points(40) == grown.points(40)
        assert max(values) in filled.points(40)[2]
        assert min(values) in filled.points(40)[2]


class TestSamples:
    def test_are_true_points_of_the_whole_range(self, tmp_path: Path) -> None:
        data = b"".join(line(n, score=math.sqrt(n), note="x" * 100) for n in range(1, 5001))
        (tmp_path / "result.json").write_bytes(data)
        found = sample_points(tmp_path / "result.json", "score", 16)
        assert len(found) == 16
        assert set(found) <= set(read_points(data, "score"))
        assert found == sorted(found)
        assert found[0][0] == 1
        assert found[-1][0] > 4980

    def test_of_a_short_file_are_its_lines(self, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_bytes(line(1, score=3) + b'{"torn')
        assert sample_points(tmp_path / "result.json", "score", 16) == [(1.0, 0.5, 3.0)]

    def test_have_no_lines_that_are_too_long(self, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_bytes(line(1, score=3, note="x" * SAMPLE_BYTES) * 100)
        assert sample_points(tmp_path / "result.json", "score", 16) == []


class TestOrder:
    @pytest.fixture
    def sample(self, tmp_path: Path) -> SampleExperiment:
        sample = SampleExperiment(tmp_path / "e", list(range(50)))
        for at, trial in enumerate(sample.trials):
            sample.report(trial, float(at % 10), float(at))
        sample.snapshot()
        return sample

    def test_best_trials_come_first(self, sample: SampleExperiment, monkeypatch: pytest.MonkeyPatch) -> None:
        model = ExperimentModel(Location(sample.folder))
        read: list[str] = []
        real = model.location.storage.read

        def reading(key: str) -> bytes:
            read.append(key.partition("/")[0])
            return real(key)

        monkeypatch.setattr(model.location.storage, "read", reading)
        model.load()
        folders = {
            each.trial_id: sample.host.files.path(each).name for each in sample.host.engine.state.trials.values()
        }
        assert read == [folders[trial] for trial in reversed(sample.trials)]

    def test_samples_are_replaced_by_the_files(
        self, sample: SampleExperiment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = ExperimentModel(Location(sample.folder))
        whole.load()
        monkeypatch.setattr(model_module, "MIN_SAMPLED_TRIALS", 10)
        sampled = ExperimentModel(Location(sample.folder))
        sampled.load()
        assert json.loads(sampled.curves())["curves"] == json.loads(whole.curves())["curves"]
        assert sampled.header()["loading"] == 0

    def test_a_file_that_was_read_sends_no_row_again(self, sample: SampleExperiment) -> None:
        model = ExperimentModel(Location(sample.folder))
        model.refresh(0.0)
        model.header()
        cursor = model.cursor
        assert len(json.loads(model.trial_rows())["trials"]) == 50
        model.load()
        assert len(json.loads(model.curves(after=cursor))["curves"]) == 50
        assert json.loads(model.trial_rows(cursor))["trials"] == []


class TestNestedMetrics:
    @pytest.mark.parametrize("bad", [b"", line(9, other=float("nan"))], ids=["plain", "with a line that is no JSON"])
    def test_are_found_by_their_flat_name(self, bad: bytes) -> None:
        data = line(1, loss={"train": 1.5}) + line(2, **{"loss/train": 2.5}) + line(3, loss={"a": {"b": 1}}) + bad
        assert read_columns(data, "loss/train", 10) is None
        assert read_points(data, "loss/train")[:3] == [(1, 0.5, 1.5), (2, 1, 2.5), None]
        assert read_points(data, "loss/a/b")[2] == (3, 1.5, 1.0)
