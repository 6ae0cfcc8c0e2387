from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.storage.checkpoints.retention import ranked, to_delete


def checkpoints(*metrics):
    return [
        CheckpointInfo(name=f"checkpoint_{i:06d}", index=i, iteration=i, metrics=m, attempt=1)
        for i, m in enumerate(metrics)
    ]


def scored(*scores):
    return checkpoints(*({"score": score} for score in scores))


def rules(keep, attribute="score", order="max"):
    return CheckpointRules(num_to_keep=keep, score_attribute=attribute, score_order=order)


def indices(infos):
    return [info.index for info in infos]


def test_nothing_is_deleted_without_a_number_to_keep():
    assert to_delete(scored(1, 2, 3), rules(None)) == []


def test_without_a_score_attribute_the_oldest_go():
    assert indices(to_delete(scored(9, 8, 7), CheckpointRules(num_to_keep=2))) == [0]


def test_the_lowest_scores_go():
    assert indices(to_delete(scored(5, 1, 3, 4), rules(2))) == [1, 2]


def test_with_order_min_the_highest_scores_go():
    assert indices(to_delete(scored(1, 5, 3, 2), rules(2, order="min"))) == [1, 2]


def test_the_latest_stays_even_when_it_is_the_worst():
    assert indices(to_delete(scored(5, 4, 1), rules(1))) == [1]


@pytest.mark.parametrize("order", ["max", "min"])
def test_nan_is_the_worst_of_all(order):
    infinities = (-math.inf, math.inf)
    assert indices(to_delete(scored(math.nan, *infinities, 0), rules(3, order=order))) == [0]


def test_ties_keep_the_order_of_registration():
    assert indices(ranked(scored(1, 1, 0, 1), rules(1))) == [2, 0, 1, 3]


def test_a_checkpoint_without_the_attribute_counts_as_the_best():
    infos = checkpoints({"score": 5}, {"other": 1}, {"score": 7}, {"score": 6})
    assert indices(ranked(infos, rules(1))) == [0, 1, 3, 2]
    assert indices(to_delete(checkpoints({"score": 5}, {}, {"score": 4}), rules(1))) == [0]


@pytest.mark.parametrize("bad", ["0.5", None, [1]])
def test_a_score_that_is_not_a_number_is_an_error_that_names_it(bad):
    with pytest.raises(InvalidInputError, match=r"'score' of checkpoint_000001 is .* not a number"):
        to_delete(scored(1, bad), rules(1))


@pytest.mark.parametrize("metrics", [{"eval/loss": 2}, {"eval": {"loss": 2}}])
def test_the_attribute_may_be_nested(metrics):
    infos = checkpoints({"eval/loss": 1}, metrics, {"eval/loss": 3})
    assert indices(to_delete(infos, rules(1, "eval/loss", "min"))) == [1]


def test_keeping_less_than_one_is_refused():
    with pytest.raises(InvalidInputError, match="1 or more"):
        to_delete(scored(1), rules(0))


def test_without_checkpoints_there_is_nothing_to_delete():
    assert to_delete([], rules(1)) == []


@given(
    st.lists(st.sampled_from([math.nan, -math.inf, -1.0, 0.0, 1, 2.5, math.inf]), max_size=30),
    st.integers(min_value=1, max_value=5),
    st.sampled_from(["max", "min"]),
)
def test_rules_after_every_checkpoint_keep_best_and_latest(scores, keep, order):
    """A second statement of the rules: sort all by (not NaN, score), stably, and keep the end and the latest."""
    kept = []
    for info in scored(*scores):
        kept.append(info)
        gone = to_delete(kept, rules(keep, order=order))

        def rank(other):
            score = other.metrics["score"]
            number = not math.isnan(score)
            return number, (score if order == "max" else -score) if number else 0

        expected = [other for other in sorted(kept, key=rank)[:-keep] if other is not info]
        assert gone == expected
        kept = [other for other in kept if other not in gone]
        assert info in kept
        assert len(kept) <= keep + 1
