from __future__ import annotations

import math
import threading
from pathlib import PurePosixPath
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import StopRule
from trialpod.protocol.values import open_leniently
from trialpod.tune.report_values import MAX_UNJUDGED, StopRuleError, StopRules, as_number, encode, flatten


def test_nested_metrics_become_names_with_slashes() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a/b": 1, "a/c/d": 2, "e": 3}


def test_an_integer_key_is_converted_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="reported as '7'"):
        assert flatten({7: 1}) == {"7": 1}  # type: ignore[dict-item]
    assert flatten({7: 1}) == {"7": 1}  # type: ignore[dict-item]


@pytest.mark.parametrize("key", [None, 1.5, ("a",), b"a", True])
def test_other_keys_are_refused(key: object) -> None:
    with pytest.raises(InvalidInputError, match="keys are strings"):
        flatten({key: 1})  # type: ignore[dict-item]


def test_an_older_operator_gets_plain_data() -> None:
    values = {"a": np.float32(0.5), "b": np.int64(3), "c": np.arange(2), "d": np.array(1.5), "e": PurePosixPath("/x")}
    assert msgspec.msgpack.decode(encode(values, keeps_types=False)) == {
        "a": 0.5,
        "b": 3,
        "c": [0, 1],
        "d": 1.5,
        "e": "/x",
    }


def test_nan_and_infinity_are_reported_as_they_are() -> None:
    got = msgspec.msgpack.decode(encode({"a": math.nan, "b": -math.inf}))
    assert math.isnan(got["a"])
    assert got["b"] == -math.inf


def test_a_tensor_is_refused_with_the_remedy() -> None:
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(InvalidInputError, match=r"metric 'loss' of type torch.Tensor .*call .item\(\)"):
        encode({"ok": 1, "loss": tensor})


def test_unpicklable_metric_becomes_text(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()
    for _ in range(2):
        assert open_leniently(encode({"ok": (1,), "lock": lock})) == {"ok": (1,), "lock": str(lock)}
    (warning,) = caplog.records
    assert "the metric 'lock' is stored as text" in warning.message


def test_too_large_an_integer_for_an_older_operator_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be reported: .*int"):
        encode({"huge": 2**70}, keeps_types=False)


def test_oversized_result_names_its_largest_keys() -> None:
    with pytest.raises(InvalidInputError, match=r"9\.0 MB with 2 keys, the largest is 'history'"):
        encode({"a": 1, "history": "x" * 9_000_000})


def test_a_stop_rule_is_met_at_its_value_and_above() -> None:
    rules = StopRules([StopRule("acc", 0.9), StopRule("n", 10)])
    assert [rules.met({"acc": acc, "n": 1}) for acc in (0.89, 0.9, 0.95)] == [False, True, True]
    assert rules.met({"acc": np.float64(0.9), "n": 0})
    assert rules.met({"acc": math.nan, "n": 10})


def test_stop_rule_on_a_missing_metric_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = StopRules([StopRule("typo", 1)])
    assert not any(rules.met({"acc": 5}) for _ in range(3))
    assert len(caplog.records) == 1
    assert "'typo'" in caplog.records[0].message


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1), (True, 1), (np.float32(0.5), 0.5), ("1", None), (None, None), ([1], None)]
)
def test_what_counts_as_a_number(value: object, number: float | None) -> None:
    assert as_number(value) == number


def test_every_kind_of_dict_is_flattened() -> None:
    from collections import OrderedDict, defaultdict

    nested = {"a": OrderedDict(b=1), "c": defaultdict(int, d=defaultdict(int, e=2))}
    assert flatten(nested) == {"a/b": 1, "c/d/e": 2}


class TestMisspeltStopKeys:
    RESULT: ClassVar[dict[str, float]] = {"loss": 0.5, "acc_top5": 0.1, "training_iteration": 1, "time_total_s": 2.0}

    @pytest.mark.parametrize(
        ("key", "intended"),
        [("training_iterations", "training_iteration"), ("Loss", "loss"), ("losss", "loss"), ("los", "loss")],
    )
    def test_the_first_result_names_the_nearest(self, key: str, intended: str) -> None:
        with pytest.raises(StopRuleError, match=f"stop: '{key}' is not in the result.*did you mean '{intended}'"):
            StopRules([StopRule(key, 1)]).met(self.RESULT)

    @pytest.mark.parametrize("key", ["val_loss", "quality", "acc_top1"])
    def test_what_may_come_later_is_waited_for(self, key: str) -> None:
        rules = StopRules([StopRule(key, 1)])
        assert not any(rules.met(self.RESULT) for _ in range(MAX_UNJUDGED + 1))
        assert rules.met({**self.RESULT, key: 1})

    def test_a_class_does_not_train_forever(self) -> None:
        rules = StopRules([StopRule("quality", 1)])
        rules.must_end = True
        assert not any(rules.met(self.RESULT) for _ in range(MAX_UNJUDGED - 1))
        with pytest.raises(StopRuleError, match="'quality' is in none of 1,000 results"):
            rules.met(self.RESULT)
        other = StopRules([StopRule("quality", 1), StopRule("training_iteration", 9)])
        other.must_end = True
        assert not any(other.met(self.RESULT) for _ in range(MAX_UNJUDGED + 1))

    @pytest.mark.parametrize("value", ["1", "true", "ON"])
    def test_the_check_can_be_switched_off(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", value)
        assert not StopRules([StopRule("losss", 1)]).met(self.RESULT)

    @pytest.mark.parametrize("value", ["0", "", "false", "Off"])
    def test_the_check_stays_on_for_values_that_mean_no(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", value)
        with pytest.raises(StopRuleError, match="losss"):
            StopRules([StopRule("losss", 1)]).met(self.RESULT)
