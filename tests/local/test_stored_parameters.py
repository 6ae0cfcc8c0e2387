"""Large parameters of a Trainable in real experiments: reuse, continuing others, one file for equal ones."""

from __future__ import annotations

import os
import time

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local


def test_arrays_are_stored_once_and_resume_accepts_others(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os, sys
        import numpy as np
        from trialpod import tune

        class Sums(tune.Trainable):
            def setup(self, config, data=None, same=None):
                self.data, self.same = data, same
            def step(self):
                if self.config["i"] == 1 and not os.path.exists(self.config["mended"]):
                    raise RuntimeError("broken")
                assert self.data is self.same
                return {"sum": float(self.data.sum() + self.same.sum()), "done": True}
            def reset_config(self, new_config):
                self.config = new_config
                return True

        value = float(sys.argv[1])
        data = np.full(200_000, value)
        bound = tune.with_parameters(Sums, data=data, same=np.full(200_000, value))
        tune.register_env("maze", lambda config: config)
        storage = os.path.abspath("s")
        if value == 1:
            tuner = tune.Tuner(
                bound,
                param_space={"i": tune.grid_search([0, 1, 2]), "mended": os.path.abspath("mended")},
                tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
                run_config=tune.RunConfig(name="x", storage_path=storage, verbose=0),
            )
        else:
            open("mended", "w").close()
            tuner = tune.Tuner.restore(storage + "/x", bound, resume_errored=True)
        grid = tuner.fit()
        print("sums", [(r.metrics or {}).get("sum") for r in grid])
        """,
    )
    objects = shell.folder / "s" / "x" / ".trialpod" / "objects"

    def run(value: str) -> str:
        done = shell.python("script.py", value, timeout_s=90)
        assert done.returncode == 0, done.stdout + done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("sums"))

    assert run("1").startswith("sums [400000.0, None, 400000.0]")
    (first,) = objects.iterdir()
    long_ago = time.time() - 3600
    os.utime(first, (long_ago, long_ago))
    assert run("2").startswith("sums [400000.0, 800000.0, 400000.0]")
    (second,) = objects.iterdir()
    assert second.name != first.name
