from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod import tune
from trialpod.errors import StorageError
from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import Assignment, AttemptEnd, CheckpointInfo, CheckpointRules, StopRule, TrainableRef
from trialpod.protocol.nested import NestedNames
from trialpod.runner.attempt import Attempt, iteration_of
from trialpod.runner.class_runner import ClassRunner
from trialpod.runner.command.command_runner import run_command
from trialpod.runner.function_runner import run_function
from trialpod.runner.preemption import margin_s
from trialpod.storage.base import StorageCredentialsError, StorageDeniedError, StorageUnavailableError


class Link:
    """Keeps what the attempt hands to its link."""

    def __init__(self) -> None:
        self.nested = NestedNames()
        self.horizons: tuple[tuple[str, float], ...] = ()
        self.decision: str | None = None
        self.published: list[dict[str, Any]] = []
        self.waited = 0
        self.gone: list[str] = []
        self.announced: list[str] = []
        self.ended = False
        self.superseded = False

    def check(self) -> None: ...

    def publish(self, result: bytes, checkpoint: CheckpointInfo | None, *, wake: bool) -> int:
        assert checkpoint is None
        self.published.append(msgspec.msgpack.decode(result))
        return len(self.published)

    def wait_decision(self) -> str | None:
        self.waited += 1
        return self.decision

    def announce(self, checkpoint: CheckpointInfo) -> None:
        self.announced.append(checkpoint.name)

    def deleted(self, names: list[str]) -> None:
        self.gone += names


def attempt(
    link: Link, folder: Path, clock: Any = lambda: 0.0, sleep: Any = lambda _seconds: None, **fields: Any
) -> Attempt:
    assignment = Assignment(
        trial_id="t",
        attempt=fields.pop("attempt", 1),
        trial_name="n",
        experiment="e",
        experiment_tag="",
        trial_dir=str(folder),
        params=msgspec.Raw(b"\x80"),
        trainable=TrainableRef(),
        **fields,
    )
    return Attempt(assignment, link, clock=clock, wall=lambda: 5.0, sleep=sleep)  # type: ignore[arg-type]


def test_only_a_result_at_the_horizon_waits(tmp_path: Path) -> None:
    link = Link()
    link.horizons = (("epoch", 3.0),)
    made = attempt(link, tmp_path)
    for result in ({"epoch": 2}, {"other": 9}, {"epoch": "3"}, {"epoch": None}):
        assert made.send(result, None, False) is None
    assert link.waited == 0
    link.decision = "pause"
    link.decision = None
    made.send({"epoch": 3}, None, False)
    assert link.waited == 1


@pytest.mark.parametrize(("decision", "outcome"), [("stop", "stopped"), ("pause", "paused"), (None, None)])
def test_a_decision_ends_the_trial_for_this_process(
    tmp_path: Path, decision: str | None, outcome: str | None
) -> None:
    link = Link()
    link.decision = decision
    assert attempt(link, tmp_path).send({}, None, False) == outcome


def test_a_done_result_does_not_wait_for_a_decision(tmp_path: Path) -> None:
    link = Link()
    link.horizons = (("epoch", 0.0),)
    assert attempt(link, tmp_path).send({"epoch": 1}, None, True) == "completed"
    assert link.waited == 0


def test_checkpoints_are_committed_announced_and_retained(tmp_path: Path) -> None:
    link = Link()
    made = attempt(link, tmp_path, checkpoint_rules=CheckpointRules(num_to_keep=1), next_checkpoint_index=4)
    source = tmp_path / "source"
    source.mkdir()
    (source / "w").write_text("x")
    for step in (1, 2):
        result = {"training_iteration": step, "curve": [1, 2]}
        info = made.snapshot(str(source), result)
        assert result["checkpoint_dir_name"] == info.name
        assert info.metrics["training_iteration"] == step
        assert "curve" not in info.metrics
        made.send(result, info, False)
    assert made.complete(AttemptEnd(cause="completed"), 1.0).cause == "completed"
    assert link.announced == ["checkpoint_000004", "checkpoint_000005"]
    assert link.gone == ["checkpoint_000004"]
    assert not (tmp_path / "checkpoint_000004").exists()


class TestWhatFailsAtTheEnd:
    def test_a_checkpoint_score_that_is_no_number_is_named(self, tmp_path: Path) -> None:
        rules = CheckpointRules(num_to_keep=1, score_attribute="accuracy")
        made = attempt(Link(), tmp_path, checkpoint_rules=rules)
        source = tmp_path / "source"
        source.mkdir()
        for score in (0.5, "unknown"):
            result: dict[str, Any] = {"accuracy": score}
            made.send(result, made.snapshot(str(source), result), False)
        end = made.complete(AttemptEnd(cause="completed"), 1.0)
        made.close()
        assert end.cause == "failed"
        assert "checkpoint score 'accuracy'" in end.error

    def test_a_checkpoint_that_is_lost_leaves_the_other_files(self, tmp_path: Path) -> None:
        trial, bucket = tmp_path / "trial", tmp_path / "bucket"
        trial.mkdir()
        rules = CheckpointRules(artifacts=True)
        made = attempt(Link(), trial, checkpoint_rules=rules, checkpoint_uri=f"file://{bucket}")
        (trial / "plot.png").write_text("plot")
        made._commit_queue_or_none = Queue()  # type: ignore[assignment]
        assert made.complete(AttemptEnd(cause="completed"), 1.0).cause == "failed"
        assert (bucket / "plot.png").read_text() == "plot"
        made.close()
        assert not made._artifacts._thread.is_alive()  # type: ignore[union-attr]


class Queue:
    """Commits nothing."""

    def drain(self, _left: Any) -> bool:
        raise StorageError("no room")

    def close(self) -> None:
        """Nothing is left to do."""


class TestWaitingForTheStorage:
    def test_until_it_answers(self, tmp_path: Path) -> None:
        waits: list[float] = []
        made = attempt(Link(), tmp_path, sleep=waits.append)
        answers = iter([StorageUnavailableError("away"), StorageCredentialsError("refused"), None])

        def call() -> str:
            if (error := next(answers)) is not None:
                raise error
            return "there"

        assert made.retry_while_unavailable(call, "it continues") == "there"
        assert len(waits) == 2

    @pytest.mark.parametrize("error", [StorageDeniedError("denied"), StorageError("lost")])
    def test_not_for_what_stays_as_it_is(self, tmp_path: Path, error: StorageError) -> None:
        made = attempt(Link(), tmp_path, sleep=lambda _seconds: pytest.fail("it waited"))

        def call() -> None:
            raise error

        with pytest.raises(type(error)):
            made.retry_while_unavailable(call, "it continues", denial_is_final=True)

    def test_not_once_the_process_is_to_end(self, tmp_path: Path) -> None:
        made = attempt(Link(), tmp_path)

        def call() -> None:
            made.preempt()
            raise StorageUnavailableError("away")

        with pytest.raises(StorageUnavailableError):
            made.retry_while_unavailable(call, "it continues")


def test_a_metric_that_is_no_unicode_is_committed_as_text(tmp_path: Path) -> None:
    link = Link()
    made = attempt(link, tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    result: dict[str, Any] = {"file": "caf\udce9"}
    info = made.snapshot(str(source), result)
    made.announce(info)
    assert made.complete(AttemptEnd(cause="completed"), 1.0).cause == "completed"
    assert link.announced == [info.name]
    assert info.metrics == {"file": "caf\\udce9", "checkpoint_dir_name": info.name}
    assert result["file"] == "caf\udce9"


def test_first_attempt_without_checkpoints_opens_no_store(tmp_path: Path) -> None:
    assert attempt(Link(), Path("s3://not/opened")).restore() is None


def test_only_checkpoints_up_to_the_start_are_considered(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "w").write_text("x")
    first = attempt(Link(), tmp_path)
    infos = []
    for step in (1, 2, 3):
        infos.append(first.snapshot(str(source), {"training_iteration": step}))
        first.send({"training_iteration": step}, infos[-1], False)
    first.complete(AttemptEnd(cause="completed"), 1.0)
    later = attempt(Link(), tmp_path, attempt=2, checkpoint=infos[1], checkpoints=infos)
    found = later.restore()
    assert found is not None
    assert found[0].name == infos[1].name
    assert (found[1] / "w").read_text() == "x"


class TestCheckpointOfTheLastIteration:
    """A worker failed before rank 0 sent the last result: the retry restores the checkpoint of that result."""

    def retried(self, tmp_path: Path, limit: float, **fields: Any) -> Attempt:
        source = tmp_path / "source"
        source.mkdir()
        (source / "w").write_text("x")
        first = attempt(Link(), tmp_path)
        info = first.snapshot(str(source), {"training_iteration": 3, "name": "x"})
        first.send({"training_iteration": 3}, info, True)
        first.complete(AttemptEnd(cause="completed"), 1.0)
        rules = [StopRule("other", 0.0), StopRule("name", 0.0), StopRule("training_iteration", limit)]
        return attempt(Link(), tmp_path, attempt=2, checkpoint=info, checkpoints=[info], stop_rules=rules, **fields)

    def steps(self, made: Attempt) -> list[int]:
        class Steps(tune.Trainable):
            def step(self) -> dict[str, Any]:
                return {"done": True}

            def save_checkpoint(self, checkpoint_dir: str) -> None: ...

            def load_checkpoint(self, checkpoint: Any) -> None: ...

        assert ClassRunner(made, {}).run(Steps) == "completed"
        return [result["training_iteration"] for result in made.link.published]  # type: ignore[attr-defined]

    def test_class_takes_no_further_step(self, tmp_path: Path) -> None:
        assert self.steps(self.retried(tmp_path, 3.0)) == []

    def test_class_trains_on_to_a_raised_limit(self, tmp_path: Path) -> None:
        assert len(self.steps(self.retried(tmp_path, 4.0))) == 1

    @pytest.mark.parametrize(("limit", "calls"), [(3.0, 0), (4.0, 1)])
    def test_function_is_not_called_again(self, tmp_path: Path, limit: float, calls: int) -> None:
        called: list[dict[str, Any]] = []
        assert run_function(called.append, self.retried(tmp_path, limit), {}) == "completed"
        assert len(called) == calls

    def test_command_is_not_started_again(self, tmp_path: Path) -> None:
        spec = CommandSpec(command=["touch", str(tmp_path / "started")])
        assert run_command(spec, self.retried(tmp_path, 3.0), {}, str(tmp_path)) == "completed"
        assert not (tmp_path / "started").exists()

    def test_exploit_trains_on_from_that_of_another_trial(self, tmp_path: Path) -> None:
        made = self.retried(tmp_path, 3.0, source_dir=str(tmp_path))
        assert not made.is_trained(made.assignment.checkpoints[0])


def test_time_left_counts_down_from_the_first_signal(tmp_path: Path) -> None:
    now = [10.0]
    made = attempt(Link(), tmp_path, clock=lambda: now[0], grace_s=15.0)
    assert made.time_left_s() is None
    made.preempt()
    now[0] = 14.0
    made.preempt()
    assert made.time_left_s() == 11.0
    now[0] = 99.0
    assert made.time_left_s() == 0.0


def test_preempted_attempt_ends_with_checkpoint_if_it_can(tmp_path: Path) -> None:
    made = attempt(Link(), tmp_path)
    made.preempt()
    source = tmp_path / "source"
    source.mkdir()
    result: dict[str, Any] = {"training_iteration": 1}
    assert made.send(dict(result), None, False) is None
    info = made.snapshot(str(source), result)
    assert made.send(result, info, False) == "preempted"


def test_two_calls_of_preempt_ask_the_program_once(tmp_path: Path) -> None:
    interrupted: list[Attempt] = []
    asked: list[bool] = []

    def clock() -> float:
        if interrupted:  # the signal's handler runs while the thread that watches for it is here
            interrupted.pop().preempt()
        return 100.0

    made = attempt(Link(), tmp_path, clock)
    made.on_preempted = lambda: asked.append(made.preempted)
    interrupted.append(made)
    made.preempt()
    assert asked == [True]


def test_exit_after_the_trial_was_stopped_completes_nothing(tmp_path: Path) -> None:
    link = Link()
    link.decision = "pause"

    def train(config: dict[str, Any]) -> None:
        try:
            tune.report({"x": 1})
        except BaseException:  # noqa: BLE001
            raise SystemExit(0) from None

    assert run_function(train, attempt(link, tmp_path), {}) == "paused"


def test_result_after_the_end_was_sent_ends_the_trainable(tmp_path: Path) -> None:
    link = Link()
    made = attempt(link, tmp_path)
    made.preempt()
    link.ended = True  # in another thread: the grace period is over
    assert made.send({"training_iteration": 1}, None, False) == "preempted"


def test_stop_rules_come_from_the_assignment(tmp_path: Path) -> None:
    made = attempt(Link(), tmp_path, stop_rules=[StopRule("a/b", 2.0)])
    assert [made.judge({"a/b": value}) for value in (1, 2)] == [False, True]


def test_margin_before_kill_is_a_fifth_up_to_two_seconds() -> None:
    assert [margin_s(grace) for grace in (0.5, 5.0, 30.0)] == [0.1, 1.0, 2.0]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(3, 3), (3.7, 3), ("ten", 0), (None, 0), (math.nan, 0), (math.inf, 0), (-math.inf, 0), (1e300, 0)],
)
def test_any_iteration_of_a_users_goes_with_a_checkpoint(given: Any, kept: int) -> None:
    assert iteration_of({"training_iteration": given}) == kept


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has no task groups")
class TestTaskGroup:
    """A task group wraps the end of the trial into a group of errors."""

    @staticmethod
    def outcome(folder: Path, *tasks: Callable[[], None]) -> Any:
        async def run(task: Callable[[], None]) -> None:
            task()

        async def together() -> None:
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
                for at, task in enumerate(tasks):
                    (inner if at else outer).create_task(run(task))

        made = attempt(Link(), folder, stop_rules=[StopRule("loss", 1.0)])
        return run_function(lambda _config: asyncio.run(together()), made, {})

    def test_a_stop_within_it_is_no_failure(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def stop() -> None:
            tune.report({"loss": 1})

        assert self.outcome(tmp_path, stop, stop) == "completed"
        assert caplog.text == ""

    def test_an_error_after_the_end_changes_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def stop_then_fail() -> None:
            try:
                tune.report({"loss": 1})
            finally:
                raise ValueError("mine")

        assert self.outcome(tmp_path, stop_then_fail, lambda: tune.report({"loss": 1})) == "completed"
        assert "ValueError: mine" in caplog.text

    def test_an_error_before_the_end_is_a_failure(self, tmp_path: Path) -> None:
        def fail() -> None:
            raise ValueError("mine")

        with pytest.raises(BaseException, match="unhandled errors") as raised:
            self.outcome(tmp_path, fail, lambda: tune.report({"loss": 0}))
        assert raised.group_contains(ValueError, match="mine")
