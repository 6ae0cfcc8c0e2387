from __future__ import annotations

import csv
import json
import math

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialpod.storage.trial_log import TrialLog

STATIC = {
    "trial_id": "3f2a1_00002",
    "experiment_tag": "2_lr=0.1,opt=a,b",
    "pid": 7,
    "hostname": "box",
    "node_ip": "127.0.0.1",
    "config": {"lr": 0.1, "opt": {"name": "a,b"}},
}


def results(folder):
    return [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]


def rows(folder):
    with open(folder / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_each_result_is_a_json_line_with_the_static_part(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"loss": 0.5, "training_iteration": 1, "done": False, "checkpoint_dir_name": None}, {"loss": 0.25}])
    log.flush()
    assert results(tmp_path) == [
        {"loss": 0.5, "training_iteration": 1, "done": False, "checkpoint_dir_name": None, **STATIC},
        {"loss": 0.25, **STATIC},
    ]


def test_the_first_result_fixes_the_columns(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"loss": 0.5, "b": 1}, {"b": 2, "new": 9}])
    log.flush()
    first, second = rows(tmp_path)
    assert list(first) == [
        "loss", "b", "trial_id", "experiment_tag", "pid", "hostname", "node_ip",
    ]  # fmt: skip
    assert first["loss"] == "0.5"
    assert (second["loss"], second["b"]) == ("", "2")


def test_non_finite_values_are_written_as_python_json_does(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e308}])
    log.flush()
    text = (tmp_path / "result.json").read_text()
    assert text.startswith('{"a":NaN,"b":Infinity,"c":-Infinity,"d":1e+308,')
    frame = pd.read_csv(tmp_path / "progress.csv")
    assert math.isnan(frame["a"][0])
    assert frame["b"][0] == math.inf


def test_pandas_reads_both_files(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"loss": 1 / (i + 1), "text": 'say "hi",\nthere'} for i in range(5)])
    log.flush()
    frame = pd.read_csv(tmp_path / "progress.csv")
    assert list(frame["loss"]) == [1 / (i + 1) for i in range(5)]
    assert set(frame["text"]) == {'say "hi",\nthere'}
    assert list(pd.read_json(tmp_path / "result.json", lines=True)["loss"]) == pytest.approx(list(frame["loss"]))


def test_unusual_values_are_kept_as_far_as_json_can(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append(
        [{"list": [1, math.nan], "dict": {"x": (1, 2)}, "huge": 2**80, "odd": object, "sur": "\ud800", "b": b"x"}]
    )
    log.flush()
    (found,) = results(tmp_path)
    assert math.isnan(found["list"][1])
    assert (found["dict"], found["huge"], found["sur"]) == ({"x": [1, 2]}, 2**80, "\ud800")
    assert (found["odd"], found["b"]) == ("object", "b'x'")
    assert len(rows(tmp_path)) == 1


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_of_any_size_are_written(tmp_path, digits):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"loss": 0.5, "huge": 10**digits}])
    log.flush()
    expected = 10**digits if digits < 4300 else hex(10**digits)
    assert results(tmp_path)[0]["huge"] == expected
    assert rows(tmp_path)[0]["huge"] == str(expected)


def test_keys_within_a_list_may_be_anything(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"loss": 0.5, "list": [{10**5000: 1, 7: 2, True: 3, None: 4, 0.5: 5}]}])
    log.flush()
    keys = {hex(10**5000): 1, "7": 2, "true": 3, "null": 4, "0.5": 5}
    assert results(tmp_path)[0]["list"] == [keys]


def test_a_reported_name_that_is_static_gives_way(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"pid": 99, "config/lr": 5, "loss": 1}])
    log.flush()
    line = (tmp_path / "result.json").read_text()
    assert line.count('"pid"') == 1
    assert json.loads(line)["pid"] == 7


def test_an_empty_result_and_no_static_part_are_still_valid(tmp_path):
    for static, result in (({}, {}), ({}, {"a": 1}), (STATIC, {})):
        log = TrialLog(tmp_path, static)
        log.append([result, result])
        log.flush()
        assert results(tmp_path) == [{**result, **static}] * 2


def test_parameters_are_readable_and_odd_ones_are_shown(tmp_path):
    TrialLog(tmp_path, {"config": {"lr": 0.1, "f": len, "n": math.nan, 3: "x", "p": tmp_path, "t": (1,)}})
    text = (tmp_path / "params.json").read_text()
    assert '\n  "lr": 0.1,\n' in text
    found = json.loads(text)
    assert math.isnan(found.pop("n"))
    assert found == {"lr": 0.1, "f": "len", "3": "x", "p": str(tmp_path), "t": [1]}


def test_a_new_log_replaces_an_old_one(tmp_path):
    for value in (1, 2):
        log = TrialLog(tmp_path, STATIC)
        log.append([{"a": value}])
        log.flush()
    assert [result["a"] for result in results(tmp_path)] == [2]
    assert len(rows(tmp_path)) == 1


def test_results_are_flushed_by_themselves_when_there_are_many(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append({"a": i} for i in range(2000))
    assert (tmp_path / "result.json").stat().st_size > 64 * 1024


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_resuming_continues_exactly_at_the_offsets(tmp_path, kept):
    log = TrialLog(tmp_path / "resumed", STATIC)
    log.append([{"a": i, "b": "x,y"} for i in range(kept)])
    offsets = log.offsets()
    log.append([{"a": 100}, {"a": 101}])
    log.flush()
    log = TrialLog.resume(tmp_path / "resumed", STATIC, offsets)
    log.append([{"a": i, "b": "x,y"} for i in range(kept, 5)])
    log.flush()
    assert log.warnings == []
    whole = TrialLog(tmp_path / "whole", STATIC)
    whole.append([{"a": i, "b": "x,y"} for i in range(5)])
    whole.flush()
    for name in ("result.json", "progress.csv", "params.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_cut_log_resumes_after_its_last_whole_line(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"a": 0}, {"a": 1}])
    offsets = log.offsets()
    for name in offsets:
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-5])
    log = TrialLog.resume(tmp_path, STATIC, offsets)
    log.append([{"a": 2}])
    log.flush()
    assert [result["a"] for result in results(tmp_path)] == [0, 2]
    assert [row["a"] for row in rows(tmp_path)] == ["0", "2"]
    assert len(log.warnings) == 2
    assert "was truncated" in log.warnings[0]


def test_resuming_missing_files_recreates_them(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"a": 0}])
    offsets = log.offsets()
    for name in (*offsets, "params.json"):
        (tmp_path / name).unlink()
    log = TrialLog.resume(tmp_path, STATIC, offsets)
    log.append([{"a": 1}])
    log.flush()
    assert [result["a"] for result in results(tmp_path)] == [1]
    assert [row["a"] for row in rows(tmp_path)] == ["1"]
    assert json.loads((tmp_path / "params.json").read_text()) == STATIC["config"]
    assert len(log.warnings) == 2


def test_attempt_and_config_show_from_their_first_result(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"a": 0}])
    log.update_static({**STATIC, "pid": 8, "config": {"lr": 0.2, "opt": {"name": "c"}}})
    log.append([{"a": 1}])
    log.flush()
    assert [(r["pid"], r["config"]["lr"]) for r in results(tmp_path)] == [(7, 0.1), (8, 0.2)]
    assert [r["pid"] for r in rows(tmp_path)] == ["7", "8"]
    assert json.loads((tmp_path / "params.json").read_text())["lr"] == 0.2


def test_a_config_with_other_keys_keeps_the_columns(tmp_path):
    log = TrialLog(tmp_path, STATIC)
    log.append([{"a": 0}])
    log.update_static({**STATIC, "config": {"lr": 0.2, "other": 1}})
    log.append([{"a": 1}])
    log.flush()
    first, second = rows(tmp_path)
    assert list(first) == list(second)
    assert (second["a"], second["pid"]) == ("1", "7")


texts = st.sampled_from(["null", "a,null,b", ",", '"', "", " ", "\\", "true", "\n", "plain", "\u2028", "[x]"])
plain = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.lists(plain, min_size=1, max_size=6))
def test_a_csv_row_is_what_pythons_csv_module_writes(tmp_path, values):
    log = TrialLog(tmp_path, STATIC)
    log.append([{f"k{i}": value for i, value in enumerate(values)}])
    log.flush()
    with open(tmp_path / "progress.csv", newline="", encoding="utf-8") as file:
        _, row = csv.reader(file)
    assert row[: len(values)] == ["" if value is None else str(value) for value in values]


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=8), scalars, min_size=1, max_size=6), max_size=5))
def test_json_and_csv_give_back_what_was_reported(tmp_path, reported):
    reported = [{k: v for k, v in result.items() if k not in STATIC} for result in reported]
    log = TrialLog(tmp_path, STATIC)
    log.append(reported)
    log.flush()
    lines = (tmp_path / "result.json").read_bytes().decode().split("\n") if reported else [""]
    assert lines[-1] == ""
    assert [repr(json.loads(line)) for line in lines[:-1]] == [repr({**result, **STATIC}) for result in reported]
    if reported:
        with open(tmp_path / "progress.csv", newline="", encoding="utf-8") as file:
            header, *body = csv.reader(file)
        assert header[: len(reported[0])] == list(reported[0])
        assert len(body) == len(reported)
        assert all(len(row) == len(header) for row in body)


class TestReaders:
    """Who reads the files while a resume writes them again never finds them empty or shorter."""

    def test_see_the_old_lines_until_the_new_are_whole(self, tmp_path):
        log = TrialLog(tmp_path, STATIC)
        log.append([{"loss": 0.5}, {"loss": 0.25}])
        log.flush()
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        log = TrialLog.resume(tmp_path, STATIC, {})
        assert log.is_replacing
        log.append([{"loss": 0.5}])
        log.append([{"text": "x" * 70_000}])  # more than is buffered
        seen = {name: (tmp_path / name).read_bytes() for name in before}
        assert seen == before
        log.flush()
        assert [result.get("loss") for result in results(tmp_path)] == [0.5, None]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(before)

    def test_see_no_traces_of_a_resume_that_was_killed(self, tmp_path):
        log = TrialLog(tmp_path, STATIC)
        log.append([{"loss": 0.5}])
        log.flush()
        killed = TrialLog.resume(tmp_path, STATIC, {})
        assert killed.is_replacing
        again = TrialLog.resume(tmp_path, STATIC, {})
        again.append([{"loss": 0.5}])
        offsets = again.offsets()
        assert offsets["result.json"] == (tmp_path / "result.json").stat().st_size
        assert not list(tmp_path.glob(".*"))

    def test_without_room_the_files_are_shortened_in_place(self, tmp_path, monkeypatch):
        log = TrialLog(tmp_path, STATIC)
        log.append([{"loss": 0.5}, {"loss": 0.25}])
        log.flush()
        monkeypatch.setattr(TrialLog, "_copy_beside", staticmethod(lambda path, size: False))
        log = TrialLog.resume(tmp_path, STATIC, {})
        assert not log.is_replacing
        assert (tmp_path / "result.json").read_bytes() == b""


class TestUnderRaysName:
    def test_keys_of_every_result_are_in_rays_order(self, tmp_path):
        from trialpod.compat import ray

        ray.install(replace=True)
        try:
            log = TrialLog(tmp_path, {"trial_id": "t", "pid": 1, "config": {"x": 1}})
            log.append([{"loss": 0.5, "timestamp": 7, "time_since_restore": 1.0, "training_iteration": 1}])
            log.flush()
        finally:
            ray.uninstall()
        row = json.loads((tmp_path / "result.json").read_text())
        order = ["loss", "timestamp", "training_iteration", "trial_id", "pid", "config", "time_since_restore"]
        assert list(row) == order
        header = (tmp_path / "progress.csv").read_text().splitlines()[0]
        assert header.split(",") == [key for key in order if key != "config"]


class TestNestedMetrics:
    FLAT = {"b/y": 1, "loss": 2.0, "b/a/x": 3, "train/acc": 0.5}  # noqa: RUF012

    def test_are_nested_in_json_and_flat_in_csv(self, tmp_path):
        log = TrialLog(tmp_path, STATIC)
        log.append([self.FLAT, {**self.FLAT, "loss": math.nan}], ("b", "b/a"))
        log.flush()
        first, second = results(tmp_path)
        assert first == {"b": {"y": 1, "a": {"x": 3}}, "loss": 2.0, "train/acc": 0.5, **STATIC}
        assert second["b"] == first["b"]
        assert math.isnan(second["loss"])
        row = rows(tmp_path)[0]
        assert {key: row[key] for key in self.FLAT} == {"b/y": "1", "loss": "2.0", "b/a/x": "3", "train/acc": "0.5"}

    def test_have_the_last_columns_under_the_name_ray(self, tmp_path, monkeypatch):
        monkeypatch.setattr("trialpod.storage.trial_log.under_ray", lambda: True)
        log = TrialLog(tmp_path, STATIC)
        log.append([self.FLAT], ("b", "b/a"))
        log.flush()
        assert results(tmp_path)[0]["b"] == {"y": 1, "a": {"x": 3}}
        assert list(rows(tmp_path)[0])[-2:] == ["b/y", "b/a/x"]
        assert rows(tmp_path)[0]["b/a/x"] == "3"
