"""The runner of single trials, with real trial processes."""

from __future__ import annotations

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local


def test_later_runner_resumes_failed_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        from ray import tune
        from ray.tune.execution.trial_runner import TrialRunner
        from ray.tune.experiment.trial import Trial
        from ray.tune.impl.tuner_internal import TunerInternal

        def train(config):
            for n in range(3):
                tune.report({"n": n * config["x"]})
            if config["x"] == 2 and not os.path.exists(config["mended"]):
                raise RuntimeError("broken")

        tune.register_trainable("train", train)
        place, mended = os.path.abspath("s/exp"), os.path.abspath("mended")
        runner = TrialRunner(local_checkpoint_dir=place)
        for x in (1, 2):
            runner.add_trial(Trial("train", config={"x": x, "mended": mended}, trial_id=f"abc_{x:05d}"))
        while not runner.is_finished():
            runner.step()
        print([(t.trial_id, t.status, t.last_result["n"]) for t in runner.get_trials()])

        open(mended, "w").close()
        internal = TunerInternal(
            restore_path=place, trainable=train, resume_config=type("Config", (), {"restart_errored": True})
        )
        print([result.error for result in internal.fit()])
        """,
    )
    done = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = (line for line in done.stdout.splitlines() if line.startswith("["))
    assert first == "[('abc_00001', 'TERMINATED', 2), ('abc_00002', 'ERROR', 4)]"
    assert last == "[None, None]"


def test_script_steps_pauses_and_stops(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os, time
        from trialpod import tune
        from trialpod.legacy.internals import Trial, TrialRunner

        class Count(tune.Trainable):
            def setup(self, config):
                self.n = 0
            def step(self):
                time.sleep(0.02)
                self.n += 1
                return {"n": self.n}
            def save_checkpoint(self, checkpoint_dir):
                return {"n": self.n}
            def load_checkpoint(self, checkpoint):
                self.n = checkpoint["n"]

        tune.register_trainable("count", Count)
        runner = TrialRunner(local_checkpoint_dir=os.path.abspath("s/exp"))
        trials = [Trial("count", trial_id=f"abc_{n:05d}", stopping_criterion={"n": 15}) for n in range(4)]
        for trial in trials:
            runner.add_trial(trial)
        paused = False
        while not runner.is_finished():
            runner.step()
            print(runner.debug_string(" "))
            if not paused and trials[0].last_result.get("n", 0) >= 3:
                runner.pause_trial(trials[0])
                runner.stop_trial(trials[3])
                paused = True
        runner.step()
        for trial in runner.get_trials():
            last = trial.last_result
            print("=", trial.trial_id, trial.status, last.get("n"), last.get("iterations_since_restore"))
        """,
    )
    done = shell.python("script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    states = [line for line in lines if not line.startswith("=")]
    ends = [line.split()[2:] for line in lines if line.startswith("=")]
    assert any("RUNNING" in line for line in states)
    assert states[-1] == "TERMINATED: 4"
    assert len(set(states)) > 3
    status, n, since = ends[0]
    assert (status, n) == ("TERMINATED", "15")
    assert int(since) < 15  # it was paused, and continued from its checkpoint
    assert [end[:2] for end in ends[1:3]] == [["TERMINATED", "15"]] * 2
    assert (ends[3][0], ends[3][1] != "15") == ("TERMINATED", True)


def test_step_raises_errors_of_the_experiment(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os, time
        from trialpod import tune
        from trialpod.legacy.internals import Trial, TrialRunner

        def train(config):
            while True:
                tune.report({"n": 1})
                time.sleep(0.02)

        class Broken(tune.Callback):
            def on_trial_result(self, **info):
                raise ValueError("boom")

        tune.register_trainable("train", train)
        for callbacks in ([Broken()], []):
            runner = TrialRunner(local_checkpoint_dir=os.path.abspath(f"s/{len(callbacks)}"), callbacks=callbacks)
            runner.add_trial(Trial("train"))
            try:
                while not runner.get_trials()[0].last_result or callbacks:
                    runner.step()
                runner.cleanup()
                print("ended", runner.debug_string())
            except Exception as error:
                print(type(error).__name__, "boom" in str(error))
        """,
    )
    done = shell.python("script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("ValueError", "ended"))] == [
        "ValueError True",
        "ended RUNNING: 1",
    ]


def test_runner_resumes_an_experiment_without_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        from trialpod import tune
        from trialpod.legacy.internals import TrialRunner

        class Late(tune.search.Searcher):
            def suggest(self, trial_id):
                return {"x": 1} if os.path.exists("begun") else self.FINISHED

        def train(config):
            tune.report({"n": config["x"]})

        tune.register_trainable("train", train)
        storage = os.path.abspath("s")
        tune.run("train", search_alg=Late(), num_samples=2, storage_path=storage, name="exp", verbose=0)
        open("begun", "w").close()
        runner = TrialRunner(local_checkpoint_dir=os.path.join(storage, "exp"), resume=True)
        print("=", runner.resumed, runner.get_trials())
        while not runner.is_finished():
            runner.step()
        print("=", runner.is_finished(), [trial.status for trial in runner.get_trials()])
        """,
    )
    done = shell.python("script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("=")] == [
        "= True []",
        "= True ['TERMINATED', 'TERMINATED']",
    ]
