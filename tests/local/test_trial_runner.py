"""The runner of single trials, with real trial processes."""

from __future__ import annotations

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local


def test_trials_made_by_hand_run_and_a_later_runner_lets_the_failed_ones_go_on(shell: Shell) -> None:
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
