from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.legacy.internals import RayTrialExecutor, Trial, TrialRunner, TunerInternal
from trialpod.tune import CheckpointConfig, PlacementGroupFactory
from trialpod.tune import trial as trial_module


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0
        if config.get("fails_at_start"):
            raise ValueError("no data")

    def step(self) -> dict[str, Any]:
        self.n += self.config.get("by", 1)
        if self.n > 50:
            raise RuntimeError("too far")
        return {"n": self.n}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"n": self.n}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = checkpoint["n"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config, self.n = new_config, 0
        return True

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        path = Path(export_dir, "model")
        path.write_text(str(self.n))
        return dict.fromkeys(export_formats, str(path))


tune.register_trainable("counter", Counter)


def trial(tmp_path: Path, **arguments: Any) -> Trial:
    return Trial("counter", local_dir=str(tmp_path), **arguments)


def test_a_trial_is_started_trained_paused_and_continues(tmp_path: Path) -> None:
    executor, one = RayTrialExecutor(), trial(tmp_path, config={"by": 2})
    assert executor.start_trial(one)
    assert one.status == "RUNNING"
    event = executor.get_next_executor_event({one}, False)
    assert (event.type, event.trial, event.result["n"]) == ("TRAINING_RESULT", one, 2)
    assert executor.get_next_executor_event({one}, False).type == "NO_RUNNING_TRIAL_TIMEOUT"
    executor.continue_training(one)
    executor.get_next_executor_event({one}, False)
    executor.pause_trial(one)
    assert (one.status, one.has_checkpoint() or one.checkpoint is not None) == ("PAUSED", True)
    assert executor.start_trial(one)
    assert executor.get_next_executor_event({one}, False).result["n"] == 6
    assert executor.get_checkpoints()[one.trial_id].startswith(str(tmp_path))
    executor.stop_trial(one)
    assert (one.status, one.last_result["n"]) == ("TERMINATED", 6)


def test_a_trial_is_saved_reset_restored_and_exported(tmp_path: Path) -> None:
    executor, one = RayTrialExecutor(), trial(tmp_path, export_formats=["onnx"])
    with pytest.raises(RuntimeError, match="has not been started"):
        executor.restore(one)
    executor.start_trial(one)
    executor.get_next_executor_event({one}, False)
    saved = executor.save(one)
    assert saved.to_dict() == {"n": 1}
    assert executor.reset_trial(one, {"by": 10}, "perturbed")
    assert (one.config, one.experiment_tag) == ({"by": 10}, "perturbed")
    executor.restore(one)
    executor.continue_training(one)
    assert executor.get_next_executor_event({one}, False).result["n"] == 11
    assert Path(executor.export_trial_if_needed(one)["onnx"]).read_text() == "11"
    executor.cleanup()


def test_error_of_a_trainable_is_an_event(tmp_path: Path) -> None:
    executor = RayTrialExecutor()
    broken = trial(tmp_path, config={"fails_at_start": True})
    assert not executor.start_trial(broken)
    assert (broken.status, str(broken.get_error()).splitlines()[0]) == (
        "ERROR",
        f"trial {broken.name}: ValueError: no data",
    )
    far = trial(tmp_path, config={"by": 100})
    executor.start_trial(far)
    event = executor.get_next_executor_event({far}, False)
    assert (event.type, str(event.result)) == ("ERROR", "too far")


def test_a_trainable_that_failed_is_not_reused(tmp_path: Path) -> None:
    executor = RayTrialExecutor(reuse_actors=True)
    made: list[Counter] = []
    stopped: list[Counter] = []

    class Watched(Counter):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            made.append(self)

        def cleanup(self) -> None:
            stopped.append(self)

    tune.register_trainable("Watched", Watched)
    good, far, last = (Trial("Watched", config={"by": by}, local_dir=str(tmp_path)) for by in (1, 100, 1))
    executor.start_trial(good)
    executor.stop_trial(good)
    executor.start_trial(far)
    assert (len(made), stopped) == (1, [])
    event = executor.get_next_executor_event({far}, False)
    executor.stop_trial(far, error=True, exc=event.result)
    assert stopped == made
    assert executor.start_trial(last)
    assert len(made) == 2
    executor.cleanup()
    assert stopped == made


def test_a_trial_knows_when_it_ends_saves_and_may_be_retried(tmp_path: Path) -> None:
    one = trial(
        tmp_path,
        stopping_criterion={"a/b": 3},
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        max_failures=1,
    )
    assert one.should_stop({"a": {"b": 3}})
    assert one.should_stop({"done": True})
    assert not one.should_stop({"a": {"b": 2}})
    one.update_last_result({"training_iteration": 4})
    assert one.should_checkpoint()
    assert one.should_recover()
    one.outcome.failures = 1
    assert not one.should_recover()
    one.update_resources({"cpu": 3})
    assert one.placement_group_factory.required_resources == {"CPU": 3.0}
    one.set_status("RUNNING")
    with pytest.raises(InvalidInputError, match="cannot change while it is RUNNING"):
        one.update_resources({"cpu": 1})
    with pytest.raises(InvalidInputError, match="must be one of"):
        one.set_status("DONE")
    assert one.reset().trial_id != one.trial_id


def test_a_runner_lists_its_trials_and_changes_those_that_wait(tmp_path: Path) -> None:
    runner = TrialRunner(local_checkpoint_dir=str(tmp_path / "exp"))
    one, two = trial(tmp_path), trial(tmp_path)
    runner.add_trial(one)
    runner.add_trial(two)
    with pytest.raises(InvalidInputError, match="already"):
        runner.add_trial(one)
    runner.update_pending_trial_resources(PlacementGroupFactory([{"CPU": 2}]))
    assert two.placement_group_factory.required_resources == {"CPU": 2.0}
    runner.stop_trial(two)
    assert runner.get_live_trials() == {one}
    assert not runner.is_finished()
    assert runner.get_trial(one.trial_id) is one
    assert runner.debug_string() == "PENDING: 1\nTERMINATED: 1"
    runner.pause_trial(one)
    assert runner.debug_string() == "PAUSED: 1\nTERMINATED: 1"
    with pytest.raises(InvalidInputError, match="not both"):
        runner.resume(resume_errored=True, restart_errored=True)
    runner.checkpoint(force=True)


def test_a_tuner_internal_needs_its_trainable() -> None:
    with pytest.raises(InvalidInputError, match="give the Trainable"):
        TunerInternal(restore_path="/exp")


class TestWhatATrialIsGiven:
    def test_older_arguments_mean_the_same(self, tmp_path: Path) -> None:
        tune.register_trainable("internals_steps", Counter)
        one = Trial("internals_steps", {"x": 1}, checkpoint_freq=2, keep_checkpoints_num=3, local_dir=str(tmp_path))
        assert (one.config, one.checkpoint_freq, one.checkpoint_config.num_to_keep) == ({"x": 1}, 2, 3)
        with pytest.raises(InvalidInputError, match="Trial has no argument 'chekpoint_freq'"):
            Trial("internals_steps", chekpoint_freq=2)

    def test_a_checkpoint_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"Trial\(restore_path='/not/there'\): there is no checkpoint"):
            trial(tmp_path, restore_path="/not/there")

    def test_can_be_changed_before_it_runs(self, tmp_path: Path) -> None:
        one = trial(tmp_path, trial_name_creator=lambda new: "mine")
        one.set_config({"x": 5})
        one.set_experiment_tag("tag")
        assert (one.config, one.experiment_tag, str(one), one.relative_logdir) == ({"x": 5}, "tag", "mine", "mine")
        assert one.reset().trial_name_creator is one.trial_name_creator


class TestWhatATrialSays:
    def test_a_checkpoint_that_cannot_be_had_at_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A callback that asks for one, as Ray's documentation shows, does not end the experiment."""
        monkeypatch.setattr(trial_module, "_warned", [])
        for _ in range(2):
            trial(tmp_path).checkpoint_now()
        assert [record.message for record in caplog.records if "should_checkpoint=True" in record.message][1:] == []
        assert "has no effect" in caplog.text

    def test_of_itself_and_its_place(self, tmp_path: Path) -> None:
        one = trial(tmp_path)
        assert (one.error, one.error_msg, one.error_filename, one.node_ip) == (None, None, None, None)
        assert (one.has_reported_at_least_once, one.is_saving, one.is_restoring) == (False, False, False)
        assert str(one.location) == ""
        one.update_last_result({"hostname": "h", "pid": 7, "node_ip": "10.0.0.1"})
        assert (str(one.location), one.node_ip, one.has_reported_at_least_once) == ("h:7", "10.0.0.1", True)
        assert str(one.temporary_state.location) == "h:7"
        assert one.run_metadata.last_result["pid"] == 7
        assert (one.run_metadata.num_failures, one.num_failures_after_restore) == (0, 0)
        assert (one.storage.trial_fs_path, one.storage.experiment_fs_path) == (one.path, one.local_dir)
        assert (one.resources.cpu, one.placement_group_factory.required_resources) == (1, {"CPU": 1.0})
        assert (one.remote_path, one.uses_cloud_checkpointing, one.get_trial_checkpoints()) == (None, False, [])
        one.outcome.error = "ValueError: x"
        assert "ValueError: x" in str(one.error)
        assert one.error_filename == "error.txt"


class TestResuming:
    def test_nothing_is_refused(self, tmp_path: Path) -> None:
        for attempt in (
            lambda: TrialRunner(local_checkpoint_dir=str(tmp_path)).resume(),
            lambda: TrialRunner(local_checkpoint_dir=str(tmp_path), resume=True),
        ):
            with pytest.raises(InvalidInputError, match="there is no experiment to resume in"):
                attempt()
        assert not TrialRunner(local_checkpoint_dir=str(tmp_path), resume="AUTO").resumed
        assert not TrialRunner.checkpoint_exists(str(tmp_path))

    def test_an_experiment_that_was_ended_starts_nothing(self, tmp_path: Path) -> None:
        runner = TrialRunner(local_checkpoint_dir=str(tmp_path / "exp"), scheduler="fifo")
        runner.add_trial(trial(tmp_path))
        assert runner.has_resources_for_trial(runner.get_trials()[0])
        runner.request_stop_experiment()
        runner.step()
        assert (runner.is_finished(), runner.debug_string()) == (True, "TERMINATED: 1")
        assert (runner.scheduler_alg, runner.search_alg) == ("fifo", None)

    def test_trials_of_different_rules_need_runners_of_their_own(self, tmp_path: Path) -> None:
        runner = TrialRunner(local_checkpoint_dir=str(tmp_path / "exp"))
        runner.add_trial(trial(tmp_path, max_failures=1))
        runner.add_trial(trial(tmp_path))
        with pytest.raises(InvalidInputError, match="by a TrialRunner of its own"):
            runner.step()
