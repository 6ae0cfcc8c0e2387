from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_recorder import Recorder

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.legacy import track
from trialpod.legacy.status_reporter import StatusReporter
from trialpod.tune import session as sessions
from trialpod.tune.session import Session, TrialInfo, TrialStopped, report


@pytest.fixture
def channel() -> Iterator[Recorder]:
    made = Recorder()
    sessions.install(Session(TrialInfo(experiment="e", trial_name="n", trial_id="i", trial_dir="/d"), made))
    yield made
    sessions.install(None)


def test_every_form_of_a_report_means_the_same(channel: Recorder) -> None:
    report({"loss": 1})
    report(loss=1)
    report(metrics={"loss": 1})
    report(1)
    track.log(loss=1)
    StatusReporter()(loss=1)
    StatusReporter()(1, extra=2)
    kept = [{key: row[key] for key in ("loss", "_metric", "extra") if key in row} for row in channel.sent]
    assert kept == [{"loss": 1}] * 3 + [{"_metric": 1}] + [{"loss": 1}] * 2 + [{"_metric": 1, "extra": 2}]
    assert [row["training_iteration"] for row in channel.sent] == [1, 2, 3, 4, 5, 6, 7]


def test_a_metric_may_be_called_metrics(channel: Recorder) -> None:
    report(metrics=5)
    assert channel.sent[0]["metrics"] == 5


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, "needs metrics"),
        (("text",), {}, "it got str"),
        (({"loss": 1},), {"chekpoint": 2}, "keyword metrics .chekpoint=..."),
    ],
)
def test_what_is_no_report_is_refused_and_does_not_count(
    channel: Recorder, args: tuple[object, ...], named: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        report(*args, **named)
    report({"loss": 1})
    assert channel.sent[0]["training_iteration"] == 1


def test_the_reporter_raises_stop_iteration_where_report_unwinds(channel: Recorder) -> None:
    reporter = StatusReporter()
    channel.outcome = "stopped"
    with pytest.raises(StopIteration, match="the trial is over"):
        reporter(loss=1)
    with pytest.raises(StopIteration):
        reporter(loss=1)
    with pytest.raises(TrialStopped):
        report(loss=1)
    assert len(channel.sent) == 1


def test_reporter_and_track_know_the_trial(channel: Recorder) -> None:
    reporter = StatusReporter()
    assert (reporter.trial_name, reporter.trial_id, reporter.logdir) == ("n", "i", "/d")
    assert (track.trial_name(), track.trial_id(), track.trial_dir()) == ("n", "i", "/d")
    assert StatusReporter(trial_name="other").trial_name == "other"


class TestCheckpointsOfTheFirstApi:
    def test_are_taken_by_the_next_report(self, channel: Recorder, tmp_path: Path) -> None:
        reporter = StatusReporter()
        assert reporter.get_checkpoint() is None
        reporter.set_checkpoint(tmp_path)
        assert (reporter.get_checkpoint(), reporter.has_new_checkpoint()) == (str(tmp_path), True)
        reporter(loss=1)
        assert not reporter.has_new_checkpoint()
        assert tmp_path.is_dir()
        assert reporter.get_latest_result()["loss"] == 1
        assert dict(reporter.trial_resources or {}) == {}
        with pytest.raises(CheckpointError, match="there is no such folder"):
            reporter.set_checkpoint(str(tmp_path / "other"))

    def test_are_not_there_outside_a_trial(self) -> None:
        reporter = StatusReporter()
        assert (reporter.get_checkpoint(), reporter.trial_resources, reporter.get_latest_result()) == (None, None, {})
