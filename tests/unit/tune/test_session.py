from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.nested import NestedNames
from trialpod.tune import session as sessions
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import encode
from trialpod.tune.session import Outcome, Session, TrialInfo, TrialStopped, get_checkpoint, get_context, report


class Recorder:
    """A channel that keeps what it is given."""

    def __init__(self) -> None:
        self.preempted = False
        self.nested = NestedNames()
        self.sent: list[dict[str, Any]] = []
        self.outcome: Outcome | None = None
        self.stop_at: int | None = None
        self.copied: list[str] = []
        self.announced: list[str] = []
        self.wait: Callable[[], None] = lambda: None

    def judge(self, result: dict[str, Any]) -> bool:
        return self.stop_at is not None and result["training_iteration"] >= self.stop_at

    def snapshot(self, source: str, result: dict[str, Any]) -> CheckpointInfo:
        self.copied.append(source)
        result["checkpoint_dir_name"] = "checkpoint_000000"
        return CheckpointInfo(name="checkpoint_000000", index=0, iteration=1, metrics={}, attempt=1)

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        self.sent.append(msgspec.msgpack.decode(encode(result)))
        self.wait()
        return "completed" if done else self.outcome

    def announce(self, checkpoint: CheckpointInfo) -> None:
        self.announced.append(checkpoint.name)

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        return Checkpoint(f"/dir/{checkpoint.name}")

    def time_left_s(self) -> float | None:
        return 3.0 if self.preempted else None


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def channel() -> Recorder:
    return Recorder()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(channel: Recorder, clock: Clock) -> Iterator[Session]:
    info = TrialInfo(experiment="exp", trial_name="name", trial_id="id", trial_dir="/dir", resources={"cpu": 2.0})
    made = Session(info, channel, clock=clock, wall=lambda: 1_700_000_000.9)
    sessions.install(made)
    yield made
    sessions.install(None)


def test_a_report_is_completed_with_iteration_times_and_date(
    session: Session, channel: Recorder, clock: Clock
) -> None:
    clock.now += 2
    report({"loss": {"a": 1}})
    clock.now += 3
    report({"loss": {"a": 2}})
    last = channel.sent[1]
    assert {key: last[key] for key in last if key != "date"} == {
        "loss/a": 2,
        "training_iteration": 2,
        "time_this_iter_s": 3.0,
        "time_total_s": 5.0,
        "time_since_restore": 5.0,
        "iterations_since_restore": 2,
        "timestamp": 1_700_000_000,
        "done": False,
        "checkpoint_dir_name": None,
    }
    assert last["date"].startswith("2023-11-1")


def test_a_later_checkpoint_replaces_an_offered_folder(session: Session, channel: Recorder, tmp_path: Path) -> None:
    session.offer(str(tmp_path / "offered"))
    report({"loss": 1}, checkpoint=Checkpoint(str(tmp_path)))
    report({"loss": 2})
    session.flush_offered_checkpoint()
    assert (channel.copied, channel.announced) == ([str(tmp_path)], [])


class TestSaveAtEnd:
    def test_is_called_once(self, session: Session, channel: Recorder) -> None:
        folders: list[str] = []
        report({"loss": 1})
        sessions.save_at_end(folders.append)
        report({"loss": 2})
        assert folders == []
        session.flush_offered_checkpoint()
        session.flush_offered_checkpoint()
        assert channel.copied == folders
        assert channel.announced == ["checkpoint_000000"]
        assert not Path(folders[0]).exists()

    def test_reported_checkpoint_replaces_it(self, session: Session, channel: Recorder, tmp_path: Path) -> None:
        sessions.save_at_end(lambda folder: pytest.fail("saved"))
        report({"loss": 1}, checkpoint=Checkpoint(str(tmp_path)))
        session.flush_offered_checkpoint()
        assert channel.copied == [str(tmp_path)]
        assert channel.announced == []

    def test_is_not_called_when_the_trial_is_over(self, session: Session, channel: Recorder) -> None:
        sessions.save_at_end(lambda folder: pytest.fail("saved"))
        channel.outcome = "stopped"
        with pytest.raises(TrialStopped):
            report({"loss": 1})
        session.flush_offered_checkpoint()
        assert channel.announced == []


def test_waiting_for_a_decision_is_no_training_time(session: Session, channel: Recorder, clock: Clock) -> None:
    def wait() -> None:
        clock.now += 300

    channel.wait = wait
    report({})
    clock.now += 3
    report({})
    assert (channel.sent[1]["time_this_iter_s"], channel.sent[1]["time_total_s"]) == (3.0, 3.0)


def test_counters_continue_from_a_restored_checkpoint(channel: Recorder, clock: Clock) -> None:
    restored = {"training_iteration": 7, "time_total_s": 50.0, "timesteps_total": 700}
    session = Session(TrialInfo(experiment="", trial_name="", trial_id=""), channel, restored=restored, clock=clock)
    clock.now += 1
    session.report({"timesteps_this_iter": 100})
    got = channel.sent[0]
    assert (got["training_iteration"], got["iterations_since_restore"]) == (8, 1)
    assert (got["time_total_s"], got["time_since_restore"]) == (51.0, 1.0)
    assert (got["timesteps_total"], got["timesteps_since_restore"]) == (800, 100)


@pytest.mark.parametrize("name", ["timesteps_total", "episodes_total"])
def test_reported_totals_count_after_a_restore(channel: Recorder, name: str) -> None:
    session = Session(TrialInfo(experiment="", trial_name="", trial_id=""), channel, restored={name: 700})
    for total in (900, 1000):
        session.report({name: total})
    assert [result[name] for result in channel.sent] == [900, 1000]


def test_totals_appear_only_if_reported(session: Session, channel: Recorder) -> None:
    report({"x": 1})
    report({"timesteps_this_iter": 5, "episodes_this_iter": 2})
    assert "timesteps_total" not in channel.sent[0]
    assert (channel.sent[1]["timesteps_total"], channel.sent[1]["episodes_total"]) == (5, 2)


@pytest.mark.parametrize("value", ["x", float("nan"), True])
@pytest.mark.parametrize("name", ["time_this_iter_s", "timesteps_this_iter", "episodes_this_iter"])
def test_what_is_added_up_is_a_finite_number(session: Session, channel: Recorder, name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        report({name: value})
    report({name: 2})
    got = channel.sent[0]
    assert got["training_iteration"] == 1
    assert got[name.replace("_this_iter", "_total")] == 2


def test_the_user_may_override_iteration_and_iteration_time(session: Session, channel: Recorder) -> None:
    report({"training_iteration": 40, "time_this_iter_s": 9.0})
    report({})
    assert (channel.sent[0]["training_iteration"], channel.sent[0]["time_total_s"]) == (40, 9.0)
    assert channel.sent[1]["training_iteration"] == 2


def test_changing_the_metrics_after_a_report_changes_nothing(session: Session, channel: Recorder) -> None:
    metrics: dict[str, Any] = {"list": [1]}
    report(metrics)
    metrics["list"].append(2)
    assert channel.sent[0]["list"] == [1]
    assert set(metrics) == {"list"}


def test_meeting_a_stop_rule_marks_that_result_done_and_unwinds(session: Session, channel: Recorder) -> None:
    channel.stop_at = 2
    report({})
    with pytest.raises(TrialStopped):
        report({})
    with pytest.raises(TrialStopped):
        report({})
    assert [result["done"] for result in channel.sent] == [False, True]


def test_a_reported_done_ends_the_trial(session: Session, channel: Recorder) -> None:
    with pytest.raises(TrialStopped) as stopped:
        report({"done": True})
    assert stopped.value.cause == "completed"


def test_a_refused_report_does_not_count(session: Session, channel: Recorder) -> None:
    with pytest.raises(InvalidInputError):
        report({"bad": b"x" * 9_000_000})
    with pytest.raises(InvalidInputError, match="needs a dict"):
        report([])  # type: ignore[arg-type]
    report({})
    assert channel.sent[0]["training_iteration"] == 1


def test_bad_metrics_are_refused_before_the_checkpoint_is_copied(
    session: Session, channel: Recorder, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError):
        report({"bad": b"x" * 9_000_000}, checkpoint=Checkpoint(tmp_path))
    assert channel.copied == []


def test_checkpoint_is_named_and_restored_next(session: Session, channel: Recorder, tmp_path: Path) -> None:
    report({}, checkpoint=Checkpoint.from_directory(tmp_path))
    assert channel.sent[0]["checkpoint_dir_name"] == "checkpoint_000000"
    found = get_checkpoint()
    assert found is not None
    assert found.path == "/dir/checkpoint_000000"


def test_a_checkpoint_that_is_not_there_is_an_error(session: Session, channel: Recorder) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        report({}, checkpoint=Checkpoint("/nonexistent"))
    assert channel.sent == []


def test_the_context_names_the_trial_and_tells_of_preemption(session: Session, channel: Recorder) -> None:
    context = get_context()
    assert context.get_experiment_name() == "exp"
    assert context.get_trial_name() == "name"
    assert context.get_trial_id() == "id"
    assert context.get_trial_dir() == "/dir"
    assert context.get_trial_resources() == {"cpu": 2.0}
    assert (context.preempted, context.time_left_s) == (False, None)
    channel.preempted = True
    assert (context.preempted, context.time_left_s) == (True, 3.0)


def test_outside_a_trial_report_only_warns() -> None:
    with pytest.warns(UserWarning, match="outside a trial"):
        report({"x": 1})
    with pytest.warns(UserWarning, match="outside a trial"):
        assert get_checkpoint() is None
    assert get_context().get_trial_id() is None


def test_a_report_inside_a_class_trainable_only_warns(channel: Recorder) -> None:
    sessions.install(Session(TrialInfo(experiment="", trial_name="", trial_id=""), channel, reports=False))
    try:
        with pytest.warns(UserWarning, match=r"return the metrics from step\(\)"):
            report({})
    finally:
        sessions.install(None)
    assert channel.sent == []


def test_metrics_that_a_trial_replaces_are_named_once(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        report({"loss": 1, "pid": 5, "config": "mine"})
    assert caplog.text.count("tune.report: trialpod sets pid, config itself") == 1
