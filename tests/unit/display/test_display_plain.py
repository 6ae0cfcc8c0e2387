from __future__ import annotations

import io

import pytest
from display_views import any_row, any_view, experiment, trial
from hypothesis import given, settings

from trialpod.tune.plugins.objectives import Objective
from trialpod_operator.display import events
from trialpod_operator.display.base import TrialOutput
from trialpod_operator.display.choose import choose_display, level_of
from trialpod_operator.display.plain import TRIAL_LINES, PlainDisplay
from trialpod_operator.display.view import ExperimentView, TrialRow


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_the_first_line_names_all_of_several_metrics() -> None:
    out = io.StringIO()
    wanted = [Objective("accuracy", "max", 0.9), Objective("size", "min")]
    PlainDisplay(out).start(experiment([], objectives=wanted))
    assert "digits: 20 trials (8 at a time) for max accuracy (>= 0.9), min size\n" in out.getvalue()


def test_a_run_is_reported_in_one_line_per_change(clock: Clock, out: io.StringIO) -> None:
    display = PlainDisplay(out, now=clock)
    display.start(experiment([], counts={"PENDING": 20}, results=0, time_budget_s=600.0))
    first = trial(0, "RUNNING", iteration=0, value=None, checkpoint=None)
    display.event(events.trial_started(first))
    clock.time += 3.5
    display.event(events.trial_ended(trial(0), "accuracy"))
    display.event(events.trial_ended(trial(1, stop_reason={"source": "stop_rule"}), "accuracy"))
    display.event(events.trial_failed(trial(2, "ERROR", error="ValueError: no")))
    display.event(events.trial_failed(trial(3, "ERROR", error="ValueError: no")))
    retried = trial(4, "PENDING", attempts=1, failures=1)
    display.event(events.trial_retried(retried, reason="exit status 1", disruption=False))
    display.event(
        events.checkpoint_damaged(
            retried, checkpoint="checkpoint_000002", problem="a.pt is short", used="checkpoint_000001"
        )
    )
    display.event(events.warning("the disk is nearly full", "delete something"))
    display.event(events.warning("reports NaN", trial_id="ab12c_00004"))
    clock.time += 8.5
    rows = [trial(0), trial(1), trial(2, "ERROR"), trial(3, "ERROR"), trial(4, "RUNNING")]
    display.update(experiment(rows))
    display.event(events.interrupted("stopping; press Ctrl-C again to stop at once"))
    display.finish(experiment(rows, state="Stopped", message="Interrupted by the user."))
    assert out.getvalue() == (
        "[    0.0s] digits: 20 trials (8 at a time) for the maximum of accuracy within 10 min 00 s\n"
        "[    0.0s] results: ./trialpod-results/digits\n"
        "[    0.0s] ab12c_00000 started: lr=0.1, layers=2, epochs=9\n"
        "[    3.5s] ab12c_00000 ended after 9 iterations in 3.2 s: accuracy=0.5\n"
        "[    3.5s] ab12c_00001 stopped (stop rule) after 9 iterations in 3.2 s: accuracy=0.6\n"
        "[    3.5s] ab12c_00002 failed: ValueError: no\n"
        "[    3.5s]   log: ./trialpod-results/digits/train_ab12c_00002/log.txt\n"
        "[    3.5s] ab12c_00003 failed with the same error as ab12c_00002\n"
        "[    3.5s] ab12c_00004 attempt 1 failed (exit status 1); it resumes from the checkpoint of iteration 9\n"
        "[    3.5s] ab12c_00004 checkpoint_000002 cannot be used (a.pt is short); "
        "checkpoint_000001 is used instead\n"
        "[    3.5s] warning: the disk is nearly full\n"
        "[    3.5s]   delete something\n"
        "[    3.5s] ab12c_00004 warning: reports NaN\n"
        "[   12.0s] 4/20 trials (2 failed), 1 running, best accuracy=0.9 (ab12c_00004), 120 results, "
        "42 trials/min, ETA 31.0 s\n"
        "[   12.0s] warning: stopping; press Ctrl-C again to stop at once\n"
        "[   12.0s] stopped: 4/20 trials (2 failed), 1 running, best accuracy=0.9 (ab12c_00004), 120 results; "
        "Interrupted by the user.\n"
    )


def test_progress_is_printed_on_change_every_ten_seconds(clock: Clock, out: io.StringIO) -> None:
    display = PlainDisplay(out, now=clock)
    display.start(experiment([trial(0, "RUNNING")], results=0))
    out.truncate(0)
    for second in range(60):
        clock.time += 1.0
        display.update(experiment([trial(0, "RUNNING")], results=min(second, 25)))
    assert out.getvalue().count("running") == 3


def test_a_fast_experiment_does_not_flood_the_log(clock: Clock, out: io.StringIO) -> None:
    display = PlainDisplay(out, now=clock)
    display.start(experiment([], results=0))
    for number in range(100):
        display.event(events.trial_started(trial(number)))
        display.event(events.trial_ended(trial(number), "accuracy"))
    assert len(out.getvalue().splitlines()) == 2 + TRIAL_LINES
    clock.time += 11.0
    display.update(experiment([trial(1)]))
    assert "(not shown: 90 trials started, 90 trials ended)" in out.getvalue()


class TestClockSteps:
    def test_time_never_goes_backwards(self, clock: Clock, out: io.StringIO) -> None:
        display = PlainDisplay(out, now=clock)
        display.start(experiment([trial(0, "RUNNING")], results=0))
        clock.time += 2.0
        display.event(events.trial_started(trial(0)))
        clock.time -= 3600.0
        display.event(events.trial_started(trial(1)))
        clock.time += 11.0
        display.update(experiment([trial(0, "RUNNING")], results=9))
        times = [line.partition("s]")[0].strip("[ ") for line in out.getvalue().splitlines()]
        assert times == ["0.0", "0.0", "2.0", "2.0", "13.0"]


def test_a_new_error_is_shown_even_when_trial_lines_are_left_out(clock: Clock, out: io.StringIO) -> None:
    display = PlainDisplay(out, now=clock)
    for number in range(100):
        display.event(events.trial_ended(trial(number), "accuracy"))
    display.event(events.trial_failed(trial(100, "ERROR", error="MemoryError")))
    assert "ab12c_00100 failed: MemoryError" in out.getvalue()


def test_the_same_warning_is_shown_once(clock: Clock, out: io.StringIO) -> None:
    display = PlainDisplay(out, now=clock)
    for _ in range(3):
        display.event(events.warning("slow", "wait"))
    assert out.getvalue().count("slow") == 1


def test_a_resumed_experiment_says_what_it_already_has(clock: Clock, out: io.StringIO) -> None:
    PlainDisplay(out, now=clock).start(experiment([trial(0)], eta_s=None, trials_per_minute=None))
    assert "resumed: 1/20 trials, best accuracy=0.5 (ab12c_00000), 120 results\n" in out.getvalue()


def test_a_reader_that_went_away_ends_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, now=clock)
    stream.close()
    display.start(experiment([]))
    display.finish(experiment([]))


def test_characters_that_the_stream_cannot_encode_are_escaped(clock: Clock) -> None:
    raw = io.BytesIO()
    display = PlainDisplay(io.TextIOWrapper(raw, encoding="ascii"), now=clock)
    display.event(events.warning("größer"))
    assert raw.getvalue() == b"[    0.0s] warning: gr\\xf6\\xdfer\n"


def test_a_stream_that_is_no_terminal_gets_plain_lines(out: io.StringIO) -> None:
    assert isinstance(choose_display(out, json=False, verbose=0), PlainDisplay)


def test_quiet_shows_only_warnings_and_errors(out: io.StringIO) -> None:
    display = choose_display(out, json=False, verbose=-1)
    display.start(experiment([]))
    display.event(events.trial_started(trial(0)))
    display.event(events.trial_failed(trial(0, "ERROR", error="KeyError: 'x'")))
    display.finish(experiment([]))
    assert out.getvalue() == (
        "ab12c_00000 failed: KeyError: 'x'\n  log: ./trialpod-results/digits/train_ab12c_00000/log.txt\n"
    )


@settings(max_examples=40)
@given(view=any_view, row=any_row)
def test_any_event_is_printed_without_control_characters(view: ExperimentView, row: TrialRow) -> None:
    clock, out = Clock(), io.StringIO()
    display = PlainDisplay(out, now=clock)
    display.start(view)
    clock.time += 11
    display.update(view)
    for event in (
        events.trial_started(row),
        events.trial_ended(row, view.metric),
        events.trial_failed(row),
        events.trial_retried(row, reason=row.error, disruption=True),
        events.checkpoint_damaged(row, checkpoint="c", problem=row.error, used=None),
    ):
        display.event(event)
    display.finish(view)
    lines = out.getvalue().split("\n")
    assert all(line.startswith("[") for line in lines[:-1])
    assert all(character.isprintable() or character == "\u3000" for line in lines for character in line)


class TestTrialOutput:
    def test_lines_stand_behind_their_trial(self, clock: Clock, out: io.StringIO) -> None:
        display = PlainDisplay(out, now=clock)
        display.output(
            TrialOutput("ab12c_00003", "train_ab12c_00003", 42, ["epoch 0", "  \x1b[1mbold\x1b[0m\t\x07x"])
        )
        display.output(TrialOutput("", "", 0, ["12 lines not shown: log.txt"]))
        assert out.getvalue() == (
            "(train_ab12c_00003 pid=42) epoch 0\n(train_ab12c_00003 pid=42)   bold  x\n12 lines not shown: log.txt\n"
        )

    def test_verbose_0_of_a_script_shows_nothing(self, out: io.StringIO) -> None:
        display = choose_display(out, json=False, verbose=level_of(0))
        display.event(events.warning("careful"))
        display.output(TrialOutput("a", "train_a", 1, ["epoch 0"]))
        display.finish(experiment([]))
        assert out.getvalue() == ""
