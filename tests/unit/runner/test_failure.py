from __future__ import annotations

import pytest

from trialpod.errors import InvalidInputError, SupersededError
from trialpod.runner.failure import end_of, one_line
from trialpod.tune.report_values import encode
from trialpod.tune.session import TrialStopped


def raised(action: object) -> BaseException:
    try:
        action()  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - any error is the subject
        return error
    raise AssertionError("nothing was raised")


def user_code() -> None:
    raise ValueError("first line\nsecond line")


def test_the_line_has_type_first_line_and_the_users_place() -> None:
    line = one_line(raised(user_code))
    assert line.startswith("ValueError: first line (test_failure.py:")
    assert line.endswith("in user_code)")


def test_an_error_without_a_message_is_its_type() -> None:
    assert one_line(KeyError()) == "KeyError"


def test_an_attempt_that_another_one_has_replaced_was_interrupted_and_has_not_failed() -> None:
    end = end_of(SupersededError("checkpoint_000002 is taken: it was begun by attempt 2"))
    assert (end.cause, end.error) == ("preempted", "checkpoint_000002 is taken: it was begun by attempt 2")


def test_a_very_long_message_is_cut() -> None:
    assert len(one_line(ValueError("x" * 10_000))) == 500


def test_frames_of_trialpod_below_the_users_are_cut_from_an_error_on_purpose() -> None:
    end = end_of(raised(lambda: encode({"bad": object()})))
    assert "test_failure.py" in end.traceback
    assert "report_values.py" not in end.traceback.splitlines()[-2]
    assert InvalidInputError.__name__ in end.traceback


@pytest.mark.parametrize(("code", "cause"), [(None, "completed"), (0, "completed"), (2, "failed"), ("why", "failed")])
def test_sys_exit_is_judged_by_its_status(code: object, cause: str) -> None:
    assert end_of(SystemExit(code)).cause == cause


def test_a_stop_is_no_failure() -> None:
    assert end_of(TrialStopped("paused")).cause == "paused"


def test_what_breaks_while_the_process_is_taken_away_is_not_the_trials_failure() -> None:
    end = end_of(raised(user_code), preempted=True)
    assert (end.cause, end.error.partition(":")[0]) == ("preempted", "ValueError")
