from __future__ import annotations

from pathlib import Path

import pytest

from trialpod_operator.display.base import TrialOutput
from trialpod_operator.display.line_budget import MAX_BURST, MAX_LINES_PER_S
from trialpod_operator.local.trial_output import (
    LINGER_S,
    MAX_BYTES,
    NOTICE_INTERVAL_S,
    FollowedTrials,
    OutputFollower,
)


class Trials:
    """Log files, a clock, and what was shown of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = 50.0
        self.shown: list[str] = []
        self.follower = OutputFollower(self.show, lambda trial_id, _name: trial_id != "quiet", now=lambda: self.time)

    def show(self, output: TrialOutput) -> None:
        self.shown += [f"{output.prefix} {line}".strip() for line in output.lines]

    def file(self, trial_id: str) -> Path:
        path = self.folder / f"train_{trial_id}" / "log.txt"
        path.parent.mkdir(exist_ok=True)
        return path

    def start(self, trial_id: str = "a", pid: int = 0) -> None:
        self.follower.trial_started(trial_id, f"train_{trial_id}", str(self.file(trial_id)))
        self.follower.trial_running(trial_id, pid)

    def print(self, text: str, trial_id: str = "a") -> None:
        with self.file(trial_id).open("a", newline="") as file:
            file.write(text)

    def take(self) -> list[str]:
        self.follower.poll()
        shown, self.shown = self.shown, []
        return shown


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(tmp_path)


class TestLines:
    def test_each_has_the_trial_and_its_process(self, trials: Trials) -> None:
        trials.start("a", pid=42)
        trials.print("epoch 0\nepoch 1\n")
        assert trials.take() == ["(train_a pid=42) epoch 0", "(train_a pid=42) epoch 1"]
        assert trials.take() == []

    def test_a_line_is_shown_once_complete(self, trials: Trials) -> None:
        trials.start()
        trials.print("epo")
        assert trials.take() == []
        trials.print("ch 0\nep")
        assert trials.take() == ["(train_a) epoch 0"]

    def test_a_progress_bar_shows_its_last_state(self, trials: Trials) -> None:
        trials.start()
        trials.print("\r 1/3\r 2/3\r 3/3\r\n")
        assert trials.take() == ["(train_a)  3/3"]

    def test_an_earlier_run_is_not_repeated(self, trials: Trials) -> None:
        trials.print("of before\n")
        trials.start()
        trials.print("of now\n")
        assert trials.take() == ["(train_a) of now"]

    def test_a_second_attempt_misses_nothing(self, trials: Trials) -> None:
        trials.start(pid=1)
        trials.print("first\n")
        trials.start(pid=2)
        trials.print("second\n")
        assert trials.take() == ["(train_a pid=2) first", "(train_a pid=2) second"]

    def test_only_wanted_trials_are_followed(self, trials: Trials) -> None:
        trials.start("quiet")
        trials.print("something\n", "quiet")
        assert trials.take() == []


class TestEnd:
    def test_output_comes_before_the_end(self, trials: Trials) -> None:
        trials.start()
        trials.print("last words\n")
        trials.follower.trial_ended("a")
        assert trials.shown == ["(train_a) last words"]

    def test_a_process_may_print_while_it_exits(self, trials: Trials) -> None:
        trials.start()
        trials.follower.trial_ended("a")
        trials.print("atexit without newline")
        assert trials.take() == []
        trials.time += LINGER_S
        assert trials.take() == ["(train_a) atexit without newline"]

    def test_finish_shows_the_rest(self, trials: Trials) -> None:
        trials.start()
        trials.print("one\ntwo")
        trials.follower.finish()
        assert trials.shown == ["(train_a) one", "(train_a) two"]


class TestFlood:
    def test_lines_are_bounded_and_counted(self, trials: Trials) -> None:
        trials.start()
        trials.print("x\n" * (MAX_BURST + 300))
        assert len(trials.take()) == MAX_BURST
        trials.time += 1
        trials.print("y\n" * 1000)
        assert trials.take() == ["(train_a) y"] * int(MAX_LINES_PER_S)
        trials.time += NOTICE_INTERVAL_S
        assert trials.take() == [f"1,200 lines or more of train_a not shown: {trials.file('a')}"]

    def test_a_notice_names_the_files_of_many(self, trials: Trials) -> None:
        for trial_id in "abc":
            trials.start(trial_id)
            trials.print("x\n" * MAX_BURST, trial_id)
        trials.follower.finish()
        assert trials.shown[-1] == (
            f"{2 * MAX_BURST:,} lines or more of train_b and 1 other trial not shown: {trials.folder}/*/log.txt"
        )

    def test_much_at_once_is_not_read(self, trials: Trials) -> None:
        trials.start()
        trials.print(f"begin\n{'z' * 3 * MAX_BYTES} the end of a long line\n")
        assert trials.take() == ["(train_a) begin"]
        trials.print("tail of it\nnext\n")
        assert trials.take() == ["(train_a) next"]

    def test_binary_output_is_no_error(self, trials: Trials) -> None:
        trials.start()
        trials.file("a").write_bytes(b"\xff\xfe\x00 ok\n")
        assert len(trials.take()) == 1

    def test_an_emptied_file_is_read_from_its_start(self, trials: Trials) -> None:
        trials.start()
        trials.print("one\ntwo\n")
        trials.take()
        trials.file("a").write_text("new\n")
        assert trials.take() == ["(train_a) new"]


class TestFollowedTrials:
    @pytest.mark.parametrize("name", ["3", "03", "1a2b3_00003", "train_1a2b3_00003", "00003", "all"])
    def test_are_named_in_many_ways(self, name: str) -> None:
        chosen = FollowedTrials([name, "7"])
        assert chosen("1a2b3_00003", "train_1a2b3_00003")
        assert chosen("1a2b3_00013", "train_1a2b3_00013") == (name == "all")
        assert chosen.missing == ["7"]
