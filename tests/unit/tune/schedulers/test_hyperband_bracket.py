"""The arithmetic of one bracket."""

from __future__ import annotations

import pytest

from trialpod.tune.schedulers.hyperband_bracket import LEFT, WAITING, Bracket, Member


def filled(values: list[float]) -> Bracket:
    bracket = Bracket(len(values), [1.0, 3.0, 9.0], 3)
    for number, value in enumerate(values):
        member = bracket.members[str(number)] = Member()
        bracket.record(member, 1.0, value)
        member.state = WAITING
    return bracket


def test_a_share_rounded_up_passes_and_later_ones_win_ties() -> None:
    bracket = filled([0.5, 0.1, 0.5, 0.5])
    assert bracket.all_wait()
    good, bad, compared, cutoff = bracket.halve(1.0)
    assert [trial_id for trial_id, _ in good] == ["3", "2"]
    assert bad == [("0", 3), ("1", 4)]
    assert (compared, cutoff, bracket.milestone) == (4, 0.5, 3.0)


def test_smaller_values_pass_with_the_other_sign() -> None:
    assert [trial_id for trial_id, _ in filled([3.0, 1.0, 2.0]).halve(-1.0)[0]] == ["1"]


def test_those_that_left_are_not_waited_for() -> None:
    bracket = filled([0.1, 0.2])
    bracket.members["2"] = Member()
    assert not bracket.all_wait()
    bracket.members["2"].state = LEFT
    assert bracket.all_wait()


def test_completion_grows_with_the_time_that_trials_ran() -> None:
    bracket = filled([0.1] * 9)
    assert bracket.completion() == pytest.approx(9 / (9 * 1 + 3 * 3 + 1 * 8))
