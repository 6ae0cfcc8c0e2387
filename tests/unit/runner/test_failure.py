from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trialpod.errors import InvalidInputError, SupersededError
from trialpod.protocol.messages import AttemptEnd
from trialpod.runner.failure import end_of, one_line
from trialpod.tune.report_values import flatten
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


class TestRelativePath:
    """Trials run in folders of their own, where the user's relative paths lead nowhere."""

    @pytest.fixture(autouse=True)
    def _in_a_trial(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "project").mkdir()
        (tmp_path / "project/data.txt").touch()
        (tmp_path / "results/climb/trial_1").mkdir(parents=True)
        monkeypatch.setenv("TRIALPOD_ORIG_WORKING_DIR", str(tmp_path / "project"))
        monkeypatch.chdir(tmp_path / "results/climb/trial_1")

    def test_names_the_folder_and_the_file(self, tmp_path: Path) -> None:
        end = end_of(raised(Path("data.txt").read_text))
        hint = (
            f"a trial runs in its own folder, {tmp_path}/results/climb/<trial>, not in {tmp_path}/project: "
            f"give an absolute path, {tmp_path}/project/data.txt"
        )
        assert end.error.startswith(
            "FileNotFoundError: [Errno 2] No such file or directory: 'data.txt' (test_failure"
        )
        assert end.error.endswith(f"; {hint}")
        assert end.traceback.count(hint) == 1

    def test_of_a_file_that_is_nowhere(self, tmp_path: Path) -> None:
        assert one_line(raised(Path("other.txt").read_text)).endswith(
            f"not in {tmp_path}/project: give an absolute path"
        )

    @pytest.mark.parametrize("error", [FileNotFoundError("no data"), FileNotFoundError(2, "no", "/nowhere/x")])
    def test_others_have_no_hint(self, error: OSError) -> None:
        assert "own folder" not in one_line(error)

    def test_none_where_the_folder_was_not_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRIALPOD_ORIG_WORKING_DIR")
        assert "own folder" not in one_line(raised(Path("data.txt").read_text))


def test_an_error_without_a_message_is_its_type() -> None:
    assert one_line(KeyError()) == "KeyError"


def test_replaced_attempt_was_interrupted_and_has_not_failed() -> None:
    end = end_of(SupersededError("checkpoint_000002 is taken: it was begun by attempt 2"))
    assert (end.cause, end.error) == ("preempted", "checkpoint_000002 is taken: it was begun by attempt 2")


def test_a_very_long_message_is_cut() -> None:
    assert len(one_line(ValueError("x" * 10_000))) == 500


def test_frames_below_the_users_are_cut_from_an_error() -> None:
    end = end_of(raised(lambda: flatten({object(): 1})))
    assert "test_failure.py" in end.traceback
    assert "report_values.py" not in end.traceback.splitlines()[-2]
    assert InvalidInputError.__name__ in end.traceback


@pytest.mark.parametrize(("code", "cause"), [(None, "completed"), (0, "completed"), (2, "failed"), ("why", "failed")])
def test_sys_exit_is_judged_by_its_status(code: object, cause: str) -> None:
    assert end_of(SystemExit(code)).cause == cause


def test_sys_exit_of_a_process_asked_to_end_completes_nothing() -> None:
    assert end_of(SystemExit(0), preempted=True).cause == "preempted"


def test_a_stop_is_no_failure() -> None:
    assert end_of(TrialStopped("paused")).cause == "paused"


def test_error_during_termination_is_not_the_trials_failure() -> None:
    end = end_of(raised(user_code), preempted=True)
    assert (end.cause, end.error.partition(":")[0]) == ("preempted", "ValueError")


def test_a_text_that_is_no_unicode_can_be_sent() -> None:
    end = end_of(ValueError("bad file caf\udce9"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(end), type=AttemptEnd) == end
    assert end.error == "ValueError: bad file caf\\udce9"
    assert end.traceback.endswith("bad file caf\\udce9\n")
