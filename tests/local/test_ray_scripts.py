"""Scripts written for Ray Tune, of three generations, run unchanged: their `import ray` means trialpod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local

SCRIPTS = Path(__file__).parents[2] / "examples" / "ray_scripts"


def run(shell: Shell, script: str, *args: str, status: int = 0) -> list[str]:
    # Whether a real Ray is installed beside this or not.
    done = shell.python("-m", "trialpod.compat.ray", "--replace", script, *args, timeout_s=90)
    assert done.returncode == status, done.stdout + done.stderr
    return (done.stdout + done.stderr if status else done.stdout).splitlines()


def test_a_scheduler_checkpoints_and_a_result_grid(shell: Shell) -> None:
    lines = run(shell, str(SCRIPTS / "asha_checkpoints.py"), "storage")
    assert lines == ["4 trials, 0 failed", "best lr 0.45, epoch 7, checkpoint of epoch 7"]
    trials = [entry for entry in os.listdir(shell.folder / "storage" / "asha") if entry.startswith("train_")]
    assert len(trials) == 4


def test_the_first_generation(shell: Shell) -> None:
    lines = run(shell, str(SCRIPTS / "first_generation.py"), "storage")
    assert [line for line in lines if ":" in line] == [
        "descent: 2 trials, best lr 0.2",
        "reporter: 0.4 after 5 steps",
        "track: 3 of track, iteration 3",
    ]


def test_the_second_generation(shell: Shell) -> None:
    lines = run(shell, str(SCRIPTS / "second_generation.py"), "storage")
    assert [line for line in lines if line.split(":")[0] in ("dicts", "folders", "model")] == [
        "dicts: step 3, checkpoint {'step': 3}",
        "folders: score 3, started at 3",
        "model: a=3, rows 1000, x 5",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["first", "second"])
def test_everything_that_the_page_of_a_generation_shows(shell: Shell, generation: str) -> None:
    shell.env["TUNE_RESULT_DIR"] = str(shell.folder / "results")
    script = Path(__file__).parent / "page_scripts" / f"{generation}_page.py"
    lines = run(shell, str(script))
    assert lines[-1] == f"{generation} generation: fine"


def test_the_ways_to_report_of_the_current_generation(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        import ray
        from ray import tune

        def score(x, a, b):
            return a * (x ** 0.5) + b

        def every_step(config: dict):
            for x in range(20):
                tune.report({"score": score(x, config["a"], config["b"])})

        def once(config: dict):
            tune.report({"score": max(score(x, config["a"], config["b"]) for x in range(20))})

        def returned(config: dict):
            return {"score": max(score(x, config["a"], config["b"]) for x in range(20))}

        def yielded(config: dict):
            for x in range(20):
                yield {"score": score(x, config["a"], config["b"])}

        class Steps(tune.Trainable):
            def setup(self, config: dict):
                self.x = 0
            def step(self):
                self.x += 1
                return {"score": score(self.x - 1, self.config["a"], self.config["b"])}

        for trainable in (every_step, once, returned, yielded, Steps):
            results = tune.Tuner(
                trainable,
                param_space={"a": 2, "b": 4},
                run_config=tune.RunConfig(
                    verbose=0, storage_path=os.path.abspath("s"), stop={"training_iteration": 20},
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                ),
            ).fit()
            last = results[0].metrics
            print(trainable.__name__, round(last["score"], 2), last["training_iteration"])
        """,
    )
    assert run(shell, "script.py") == [
        "every_step 12.72 20",
        "once 12.72 1",
        "returned 12.72 1",
        "yielded 12.72 20",
        "Steps 12.72 20",
    ]


def test_spawned_workers_import_ray(shell: Shell) -> None:
    shell.write("worker.py", "from ray import tune\n\ndef work(x):\n    return x, tune.__name__\n")
    shell.write(
        "script.py",
        """
        import os
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        import worker
        from ray import tune

        def spawned(x):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                return pool.submit(worker.work, x).result()

        def train(config):
            tune.report({"worked": spawned(4)[1]})

        if __name__ == "__main__":
            print(spawned(3))
            run_config = tune.RunConfig(verbose=0, storage_path=os.path.abspath("s"))
            print(tune.Tuner(train, run_config=run_config).fit()[0].metrics["worked"])
        """,
    )
    assert run(shell, "script.py") == ["(3, 'ray.tune')", "ray.tune"]


def test_one_object_serves_several_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        import ray
        from ray import tune
        from ray.tune.tuner import Tuner

        class Quadratic(tune.Trainable):
            def setup(self, config):
                with open(os.environ["SETUPS"], "a") as stream:
                    stream.write("x")
                self.count = 0
            def step(self):
                self.count += 1
                loss = (self.config["p"] - 3) ** 2 + (self.config["q"] - 5) ** 2
                return {"loss": loss, "done": self.count > 5, "pid": os.getpid()}
            def reset_config(self, new_config):
                self.config, self.count = new_config, 0
                return True

        os.environ["SETUPS"] = os.path.abspath("setups")
        ray.init()
        grid = Tuner(
            Quadratic,
            param_space={"p": tune.uniform(-10, 10), "q": tune.uniform(-10, 10)},
            tune_config=tune.TuneConfig(num_samples=5, max_concurrent_trials=1, reuse_actors=True),
            run_config=ray.tune.RunConfig(
                verbose=0, storage_path=os.path.abspath("s"),
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
        print(len(grid), {r.metrics["training_iteration"] for r in grid}, open("setups").read())
        """,
    )
    (line,) = run(shell, "script.py")
    trials, iterations, setups = line.split(" ")
    assert (trials, iterations) == ("5", "{6}")
    assert len(setups) == 1


def test_tasks_actors_and_objects_in_a_script_and_its_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        import ray
        from ray import tune

        @ray.remote
        def square(x):
            return x * x

        @ray.remote
        class Total:
            def __init__(self):
                self.n = 0
            def add(self, n):
                self.n += n
                return self.n

        big = ray.put(list(range(1000)))

        def train(config):
            print("only in log.txt")
            total = Total.remote()
            for ref in [square.remote(i) for i in range(4)]:
                total.add.remote(ref)
            return {"total": ray.get(total.add.remote(0)), "rows": len(ray.get(config["data"]))}

        if __name__ == "__main__":
            ray.init(num_cpus=1, log_to_driver=False)
            grid = tune.Tuner(
                train, param_space={"data": big},
                run_config=tune.RunConfig(verbose=1, storage_path=os.path.abspath("s")),
            ).fit()
            print(grid[0].metrics["total"], grid[0].metrics["rows"])
        """,
    )
    lines = run(shell, "script.py")
    assert "14 1000" in lines
    assert "only in log.txt" not in "\n".join(lines)
    (log,) = (shell.folder / "s").glob("*/train_*/log.txt")
    assert "only in log.txt" in log.read_text()


def test_what_is_not_offered_says_so_in_the_script_and_in_trials(shell: Shell) -> None:
    shell.write("script.py", "from ray.train.torch import TorchTrainer\nTorchTrainer(lambda: None)\n")
    text = "\n".join(run(shell, "script.py", status=1))
    assert "ray.train.torch.TorchTrainer is not offered by trialpod; a trial is one process" in text
    assert run(shell, "missing.py", status=2)[-1].endswith("missing.py does not exist")


def test_manifest_module_sees_the_alias(shell: Shell) -> None:
    shell.write("train.py", "from ray import tune\ndef train(config):\n    tune.report({'loss': config['x']})\n")
    shell.manifest(numSamples=1)
    shell.env["TRIALPOD_COMPAT"] = "ray!"
    done = shell.run("run", "experiment.yaml", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shell.results()["trials"][0]["status"] == "TERMINATED"


def test_ray_variables_of_directories(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        from ray import tune

        def train(config):
            here = os.getcwd() == tune.get_context().get_trial_dir()
            return {"here": here, "origin": os.environ["TUNE_ORIG_WORKING_DIR"]}

        for stays in ("1", "0"):
            os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = stays
            run_config = tune.RunConfig(verbose=0, storage_path=os.path.abspath("s"))
            metrics = tune.Tuner(train, run_config=run_config).fit()[0].metrics
            print(metrics["here"], metrics["origin"] == os.getcwd())
        """,
    )
    assert run(shell, "script.py") == ["True True", "False True"]


def test_install_inside_a_script_reaches_its_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        from trialpod.compat.ray import install
        install(replace=True)
        import ray
        from ray import tune

        def train(config):
            import ray.tune.schedulers
            from ray.air import session
            session.report({"version": ray.__version__})

        if __name__ == "__main__":
            run_config = tune.RunConfig(verbose=0, storage_path=os.path.abspath("s"))
            print(tune.Tuner(train, run_config=run_config).fit()[0].metrics["version"] == ray.__version__)
        """,
    )
    done = shell.python("script.py")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_trainable_errors_name_the_remedy(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os, threading
        from ray import tune
        from ray.air.checkpoint import Checkpoint

        class Base(tune.Trainable):
            def step(self):
                return {"a": 1, "done": True}

        class Outside(Base):
            def save_checkpoint(self, folder):
                return "/tmp/elsewhere"

        class Vanishes(Base):
            def save_checkpoint(self, folder):
                os.rmdir(folder)

        class NoDict(Base):
            def step(self):
                return [1]

        def bad_key(config):
            tune.report({("a", 1): 2})

        def bad_checkpoint(config):
            tune.report({"a": 1}, checkpoint=Checkpoint.from_dict({"lock": threading.Lock()}))

        def gone_checkpoint(config):
            tune.report({"a": 1}, checkpoint=Checkpoint("/nowhere"))

        for trainable in (Outside, Vanishes, NoDict, bad_key, bad_checkpoint, gone_checkpoint):
            run_config = tune.RunConfig(verbose=0, storage_path=os.path.abspath("s"))
            grid = tune.Tuner(trainable, run_config=run_config).fit()
            print(trainable.__name__, str(grid.errors[0]).splitlines()[0])
        """,
    )
    lines = run(shell, "script.py")
    wanted = {
        "Outside": "has to write below the directory",
        "Vanishes": "is gone after Vanishes.save_checkpoint()",
        "NoDict": "has to return a dict of metrics",
        "bad_key": "keys are strings (or integers)",
        "bad_checkpoint": "the dict of the checkpoint cannot be pickled",
        "gone_checkpoint": "/nowhere does not exist",
    }
    for name, text in wanted.items():
        assert any(line.startswith(f"{name} ") and text in line for line in lines), (name, lines)


def test_command_runs_a_ray_script(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        from ray import tune

        def train(config):
            return {"loss": config["x"]}

        if __name__ == "__main__":
            tune.Tuner(train, param_space={"x": 1}).fit()
        """,
    )
    shell.env["TRIALPOD_COMPAT"] = "ray!"
    done = shell.run("run", "script.py", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = shell.results("trialpod-results/script")["trials"]
    assert trial["status"] == "TERMINATED"


def test_path_below_a_checkpoint_survives_failure(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
        import os
        from ray import tune

        class Deep(tune.Trainable):
            def _setup(self, config):
                self.n, self.restored = 0, False
            def _train(self):
                self.n += 1
                if self.n == 3 and not self.restored:
                    raise RuntimeError("a bad day")
                return {"n": self.n, "restored": self.restored, "done": self.n == 4}
            def _save(self, folder):
                path = os.path.join(folder, "my", "point")
                os.makedirs(os.path.dirname(path))
                with open(path, "w") as stream:
                    stream.write(str(self.n))
                return path
            def _restore(self, path):
                assert path.endswith("my/point")
                with open(path) as stream:
                    self.n, self.restored = int(stream.read()), True

        analysis = tune.run(Deep, name="deep", local_dir="s", checkpoint_freq=1, max_failures=1, verbose=0)
        trial = analysis.trials[0]
        row = trial.last_result
        print(trial.status, row["n"], row["restored"], row["training_iteration"])
        """,
    )
    assert run(shell, "script.py")[-1] == "TERMINATED 4 True 4"
