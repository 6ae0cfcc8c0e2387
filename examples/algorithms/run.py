"""Runs an algorithm by its name on the digits of ``digits.py``.

    python examples/algorithms/run.py asha pbt_synch               # manifests of this folder, by `trialpod run`
    python examples/algorithms/run.py pbt_explore                  # what only Python can say, by a Tuner
    python examples/algorithms/run.py --scheduler asha --search optuna --parameters '{"max_t": 9}'

The last form makes any scheduler and any search algorithm from their names, those of installed packages, too.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
SPACE = {"lr": ("loguniform", 1e-3, 30), "gamma": ("loguniform", 3e-3, 3)}
ARGUMENTS = {"resource_changing": ["--cpus", "8"]}  # eight CPUs to share out, also where there are fewer


def names():
    """Return the names of all examples."""
    return sorted(path.stem for path in HERE.glob("*.yaml")) + sorted(SCRIPTS)


def directory(name):
    """Return the name of the example's directory."""
    return name.replace("_", "-")


def missing(name):
    """Return what the example lacks to run on this machine, "" if nothing."""
    if name in SCRIPTS:
        return ""
    done = subprocess.run(_trialpod("validate", _manifest(name)), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def run(name, storage):
    """Run an example. A manifest that was interrupted continues where it was."""
    if name in SCRIPTS:
        SCRIPTS[name](Path(storage))
    else:
        command = _trialpod("run", "-q", _manifest(name), "--storage", str(storage), *ARGUMENTS.get(name, []))
        subprocess.run(command, check=True)


def tune_by_name(storage, *, name, scheduler=None, search=None, samples=16, passes=27, stop=None, space=None):
    """Run an experiment by a Tuner, with a scheduler and a search algorithm that are objects or None."""
    from digits import Digits

    from trialpod import tune

    space = space or {key: getattr(tune, kind)(*bounds) for key, (kind, *bounds) in SPACE.items()}
    tuner = tune.Tuner(
        Digits,
        param_space={"gamma": 0.2, "alpha": 1e-6, **space},
        tune_config=tune.TuneConfig(
            metric="error",
            mode="min",
            num_samples=samples,
            scheduler=scheduler,
            search_alg=search,
            max_concurrent_trials=1,
            seed=7,
        ),
        run_config=tune.RunConfig(
            name=name, storage_path=str(storage.resolve()), stop=stop or {"training_iteration": passes}
        ),
    )
    return tuner.fit()


def pbt_explore(storage):
    """PBT with a function of one's own that changes the parameters further: lr never goes up again."""
    from trialpod import tune
    from trialpod.tune.schedulers import PopulationBasedTraining

    def cooling(config):
        return {**config, "lr": min(config["lr"], 20.0) * 0.7}

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_mutations={"alpha": tune.loguniform(1e-8, 1e-3)},
        custom_explore_fn=cooling,
        synch=True,
    )
    space = {"lr": tune.loguniform(1e-1, 30), "alpha": tune.loguniform(1e-8, 1e-3)}
    return tune_by_name(storage, name="pbt-explore", scheduler=scheduler, samples=8, passes=40, space=space)


def function_stopper(storage):
    """A stop rule that is a function: a trial with more than 10 % after 5 passes ends; the others after 27."""
    from trialpod.tune.stopper import CombinedStopper, FunctionStopper, MaximumIterationStopper

    def hopeless(trial_id, result):  # noqa: ARG001
        return result["training_iteration"] >= 5 and result["error"] > 10

    stop = CombinedStopper(FunctionStopper(hopeless), MaximumIterationStopper(27))
    return tune_by_name(storage, name="function-stopper", stop=stop)


SCRIPTS = {"function_stopper": function_stopper, "pbt_explore": pbt_explore}


def _trialpod(*arguments):
    return [str(Path(sys.executable).with_name("trialpod")), *map(str, arguments)]


def _manifest(name):
    path = HERE / f"{name}.yaml"
    if not path.exists():
        raise SystemExit(f"run.py: there is no example {name!r}; there are {', '.join(names())}")
    return path


def main(argv=None):
    parser = argparse.ArgumentParser(description="Run an algorithm by its name.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names())}")
    parser.add_argument("--scheduler", help="name of a scheduler, for a Tuner")
    parser.add_argument("--parameters", type=json.loads, default={}, help="its parameters, as JSON")
    parser.add_argument("--search", help="name of a search algorithm, for a Tuner")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--storage", type=Path, default=Path("trialpod-results/algorithms"))
    options = parser.parse_args(argv)
    for name in options.names:
        run(name, options.storage)
    if options.scheduler or options.search:
        from trialpod.tune.schedulers import create_scheduler
        from trialpod.tune.search import create_searcher

        scheduler = create_scheduler(options.scheduler, **options.parameters) if options.scheduler else None
        search = create_searcher(options.search) if options.search else None
        name = "-".join(filter(None, (options.scheduler, options.search))).replace("_", "-")
        grid = tune_by_name(options.storage, name=name, scheduler=scheduler, search=search, samples=options.samples)
        best = grid.get_best_result()
        print(f"{len(grid)} trials, best error {best.metrics['error']} % with {best.config}")
    elif not options.names:
        parser.error("name an example, a scheduler or a search algorithm")


if __name__ == "__main__":
    main()
