"""Metrics from lines, rows, event files and scrapes."""

from __future__ import annotations

import contextlib
import json
import math
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import TrainableError
from trialpod.protocol.command import MetricsSpec
from trialpod.tune.command.metrics.collector import ResultCollector
from trialpod.tune.command.metrics.event_files import DamagedError, Scalar, read_scalars
from trialpod.tune.command.metrics.lines import MAX_LINE_BYTES, LineSplitter
from trialpod.tune.command.metrics.pattern import MetricPattern
from trialpod.tune.command.metrics.prometheus import samples
from trialpod.tune.command.metrics.reader import LineReader, missing_metric
from trialpod.tune.command.metrics.rows import CsvReader, mlflow_point, reader_for
from trialpod.tune.command.metrics.text import json_numbers, number, pairs

NAMES = st.text("abcXYZ_", min_size=1, max_size=8)
TEXTS = st.text("a1.=: ,-+eE{}[]'\"/%\u0663\u00b2é", max_size=60)
FLOATS = st.floats(allow_nan=False)


class TestLines:
    @given(st.lists(st.binary(max_size=40)), st.integers(1, 7))
    def test_chunks_make_no_difference(self, pieces, size):
        data = b"\n".join(pieces)
        whole, chunked = LineSplitter(), LineSplitter()
        expected = [*whole.feed(data), whole.finish()]
        found = [line for at in range(0, len(data), size) for line in chunked.feed(data[at : at + size])]
        assert [*found, chunked.finish()] == expected

    def test_long_line_without_an_end_takes_bounded_memory(self):
        splitter = LineSplitter()
        for _ in range(400):
            assert splitter.feed(b"x" * 262_144) == []
        assert splitter.feed(b"\nloss=1\n") == ["x" * MAX_LINE_BYTES, "loss=1"]

    def test_progress_bars_colours_and_other_encodings(self):
        text = "10%\rloss=0.5\r\n\x1b[31mloss=0.4\x1b[0m\n\x1b]0;title\x07loss=0.3\n"
        assert LineSplitter().feed(text.encode()) == ["10%", "loss=0.5", "loss=0.4", "loss=0.3"]
        assert LineSplitter().feed("perte=0.5 é\n".encode("latin-1")) == ["perte=0.5 \ufffd"]
        assert pairs(LineSplitter().feed("loss=0.5\n".encode("utf-16-le"))[0]) == {"loss": 0.5}

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_byte_order_mark_hides_no_name(self, mark, encoding):
        assert LineSplitter().feed(f"{mark}loss,acc\n".encode(encoding)) == ["loss,acc"]


class TestNumber:
    @pytest.mark.parametrize(("text", "value"), [("12", 12), ("-1.5", -1.5), ("1e3", 1000.0), (" 2 ", 2)])
    def test_forms(self, text, value):
        assert repr(number(text)) == repr(value)

    @pytest.mark.parametrize("text", ["1_000", "2024_01", "1_0.5", "a", ""])
    def test_other_texts_are_none(self, text):
        assert number(text) is None


class TestPairs:
    @pytest.mark.parametrize(
        ("line", "found"),
        [
            ("loss=0.3", {"loss": 0.3}),
            ("loss: 0.3, acc : 93%", {"loss": 0.3, "acc": 93}),
            ("Epoch 3/10 - loss: 0.3 - val_loss: 1e-3", {"loss": 0.3, "val_loss": 0.001}),
            ("epoch=3/10 [loss=-.5]", {"epoch": 3, "loss": -0.5}),
            ("{'loss': 0.31, 'epoch': 1.0}", {"loss": 0.31, "epoch": 1.0}),
            ("train/loss=1 eval/top-1@5=2.", {"train/loss": 1, "eval/top-1@5": 2.0}),
            ("[5]\teval-logloss:0.48", {"eval-logloss": 0.48}),
            ("loss=NaN best=inf worst=-Infinity", {"loss": math.nan, "best": math.inf, "worst": -math.inf}),
            ("time: 12:30:05 version=1.2.3 date=2024-01-02 took=12s id=0x1f", {}),
            ("lossy=1 my loss =2", {"lossy": 1, "loss": 2}),
            ("http://host:8080/x?a=1&b=2", {}),
            ("loss=0.3loss=0.4", {}),
            ("nothing here", {}),
            ("loss = ", {}),
        ],
    )
    def test_forms(self, line, found):
        assert str(pairs(line)) == str(found)

    @given(st.dictionaries(NAMES, FLOATS, max_size=5), st.sampled_from(["=", ": ", " = "]), st.sampled_from(", |;\t"))
    def test_every_number_comes_back_exactly(self, values, sign, between):
        assert pairs(between.join(f"{name}{sign}{value!r}" for name, value in values.items())) == values

    @given(TEXTS)
    def test_any_text_is_taken(self, line):
        assert all(isinstance(value, (int, float)) for value in pairs(line).values())

    @pytest.mark.parametrize(
        "text",
        ["a" * MAX_LINE_BYTES, "a=" * 32_000, "1e" * 32_000, " =" * 32_000, "a=1" * 20_000, "a=" + "1" * 64_000],
    )
    def test_time_is_linear(self, text):
        begun = time.process_time()
        pairs(text)
        assert time.process_time() - begun < 1.0


class TestJsonLines:
    def test_nested_numbers_texts_and_constants(self):
        line = '{"loss": 0.3, "val": {"acc": "0.9", "deep": {"x": 1}}, "ok": true, "name": "a", "bad": NaN, "l": [1]}'
        found = json_numbers(line)
        assert found is not None
        assert math.isnan(found.pop("bad"))
        assert found == {"loss": 0.3, "val/acc": 0.9, "val/deep/x": 1}

    @pytest.mark.parametrize("line", ["[1]", "{'a': 1}", '{"a": ', "{}}", "", '{"a":' * 5000 + "}"])
    def test_what_is_no_object(self, line):
        assert not json_numbers(line)

    @given(st.dictionaries(NAMES, FLOATS))
    def test_round_trip(self, values):
        assert json_numbers(json.dumps(values)) == values


class TestLineReader:
    def test_every_name_counts_unless_some_are_named(self):
        assert LineReader(MetricsSpec(), ["loss"]).read("acc=0.9") == {"acc": 0.9}
        reader = LineReader(MetricsSpec(names=["acc"]), ["loss"])
        assert reader.read("lr=0.1 seed=3") == {}
        assert reader.read("epoch=1 loss=0.3") == {"epoch": 1, "loss": 0.3}
        assert reader.read("acc=0.9") == {"acc": 0.9}
        assert list(reader.seen) == ["lr", "seed", "epoch", "loss", "acc"]

    def test_formats(self):
        assert LineReader(MetricsSpec(format="json")).read("loss=1") == {}
        assert LineReader(MetricsSpec(format="text")).read("loss=1") == {"loss": 1}
        assert LineReader(MetricsSpec(format="none")).read('{"loss": 1}') == {}

    def test_near_matches(self):
        assert "did you mean 'val_loss'?" in missing_metric("valid_loss", ["lr", "val_loss"])
        assert "no number with a name" in missing_metric("loss", [])


class TestPattern:
    def test_named_groups(self):
        pattern = MetricPattern(r"Loss is (?P<loss>[\d.]+)(?: and acc (?P<acc>\S+))?")
        assert pattern.find("Loss is 0.5 and acc 0.9") == {"loss": 0.5, "acc": 0.9}
        assert pattern.find("Loss is 0.5") == {"loss": 0.5}

    def test_name_and_value(self):
        pattern = MetricPattern(r"<(?P<name>\w+)\|(?P<value>[^>]*)>")
        assert pattern.find("<a|1> <b|x> <c|2.5>") == {"a": 1, "c": 2.5}

    def test_exponential_search_is_ended(self):
        pattern = MetricPattern(r"(?P<x>(a+)+)$", limit_s=0.1)
        with pytest.raises(TrainableError, match=r"took more than 0.1 s .* avoid a repetition"):
            pattern.find("a" * 60 + "b")


class TestCollector:
    def test_the_objective_completes_a_result(self):
        collector = ResultCollector("loss")
        assert collector.add({"acc": 1}) is None
        assert collector.add({"acc": 2, "lr": 3}) is None
        assert collector.add({"loss": 4}) == {"acc": 2, "lr": 3, "loss": 4}
        assert collector.add({"acc": 5}) is None
        assert collector.rest == {"acc": 5}

    def test_without_an_objective_each_group_is_a_result(self):
        collector = ResultCollector(None)
        assert [collector.add({"a": 1}), collector.add({"b": 2})] == [{"a": 1}, {"b": 2}]

    def test_steps_are_said_or_counted(self):
        collector = ResultCollector("loss", "epoch", last_step=4)
        steps = [collector.add({"loss": 1, "epoch": epoch}) for epoch in (5, 7, 7, 2, 9.5, 20)]
        assert [result and result["training_iteration"] for result in steps] == [5, 7, 8, 9, 10, 20]
        assert "training_iteration" not in (ResultCollector("loss").add({"loss": 1, "epoch": 3}) or {})
        assert ResultCollector("loss").add({"loss": 1}, step=3) == {"loss": 1, "training_iteration": 3}

    def test_names_of_trialpod_and_too_many_are_left_out(self):
        collector = ResultCollector("loss")
        assert collector.add({"done": 1, "training_iteration": 9, "loss": 2}) == {"loss": 2}
        assert collector.dropped == {"done", "training_iteration"}
        collector.add({f"m{at}": at for at in range(1000)})
        assert len(collector.rest) == 256

    def test_what_something_waits_for_is_never_too_much(self):
        collector = ResultCollector("loss", "epoch", kept=["cost"])
        collector.add({f"m{at}": at for at in range(300)})
        result = collector.add({"epoch": 3, "cost": 2, "other": 1, "loss": 0.5})
        assert result is not None
        assert "other" in collector.dropped
        waited = {name: value for name, value in result.items() if not name.startswith("m")}
        assert waited == {"epoch": 3, "cost": 2, "loss": 0.5, "training_iteration": 3}

    def test_the_step_may_be_the_iteration_itself(self):
        collector = ResultCollector("loss", "training_iteration")
        collector.add({"training_iteration": 5})
        assert collector.add({"loss": 1}) == {"loss": 1, "training_iteration": 5}
        assert collector.add({"loss": 1}) == {"loss": 1, "training_iteration": 6}
        assert collector.dropped == set()

    def test_totals_are_the_commands_own(self):
        values = {"timesteps_total": 900, "episodes_total": 9, "loss": 1}
        assert ResultCollector("loss").add(values) == values

    @given(st.lists(st.dictionaries(st.sampled_from("abcl"), st.integers())))
    def test_no_value_is_lost_or_doubled(self, groups):
        collector = ResultCollector("l")
        results = [result for group in groups if (result := collector.add(group))]
        assert [result["l"] for result in results] == [group["l"] for group in groups if "l" in group]
        last = {key: value for group in groups for key, value in group.items()}
        shown = {key: value for result in [*results, collector.rest] for key, value in result.items()}
        assert shown == last


class TestRows:
    def test_csv(self):
        reader = CsvReader()
        lines = ["epoch;loss;note", "1;0.5;x", "2;nan", "epoch;loss;note", "3;0.1;"]
        found = [reader.read(line) for line in lines if line]
        rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": math.nan}, {}, {"epoch": 3, "loss": 0.1}]
        assert str(found) == str([{}, *rows])

    def test_the_name_of_a_file_says_its_form(self):
        assert isinstance(reader_for("a/m.csv", MetricsSpec()), CsvReader)
        assert isinstance(reader_for("a/m.jsonl", MetricsSpec()), LineReader)
        assert isinstance(reader_for("a/m", MetricsSpec(format="csv")), CsvReader)

    def test_mlflow(self):
        assert mlflow_point("1700000000000 0.25 7") == (7, 0.25)
        assert mlflow_point("1700000000000 0.25") == (0, 0.25)
        assert mlflow_point("1700 x 1") is None
        assert mlflow_point("") is None


def test_prometheus_samples():
    text = """# HELP loss the loss
    # TYPE loss gauge
    loss 0.25
    loss{phase="val, }x",} 1e-3 1700000000
    up{} 1
    bad
    nan_now NaN
    """
    found = samples(text)
    assert math.isnan(found.pop("nan_now"))
    assert found == {"loss": 0.25, 'loss{phase="val, }x"}': 0.001, "up": 1}


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def record(event: bytes) -> bytes:
    return struct.pack("<Q", len(event)) + b"crc4" + event + b"crc4"


def event(step: int, tag: str, value: bytes) -> bytes:
    summary = field(5, field(1, field(1, tag.encode()) + value))
    return record(b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + summary)


class TestEventFiles:
    SIMPLE = b"\x15" + struct.pack("<f", 0.5)
    TENSOR = field(8, b"\x08\x01" + field(4, struct.pack("<f", 0.25)))
    DOUBLE = field(8, b"\x08\x02" + field(6, struct.pack("<d", 0.1)))

    def test_scalars_in_each_form(self):
        data = event(3, "loss", self.SIMPLE) + event(300, "acc", self.TENSOR) + event(4, "x", self.DOUBLE)
        assert read_scalars(data) == (
            [Scalar("loss", 3, 0.5), Scalar("acc", 300, 0.25), Scalar("x", 4, 0.1)],
            len(data),
        )

    def test_a_partial_record_waits(self):
        first, second = event(1, "loss", self.SIMPLE), event(2, "loss", self.SIMPLE)
        for end in range(len(second)):
            assert read_scalars(first + second[:end]) == ([Scalar("loss", 1, 0.5)], len(first))

    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_refused(self, data):
        with contextlib.suppress(DamagedError):
            read_scalars(data + record(data))
