"""Search algorithms and what wraps them."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
from typing import Any

from ray import tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher, create_searcher
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch


class Counting(Searcher):
    """Suggests 0, 1, 2, ... and remembers the results that it gets."""

    def __init__(self, limit: int = 10, metric: Any = None, mode: Any = None) -> None:
        super().__init__(metric=metric, mode=mode)
        self.n, self.limit, self.reported = 0, limit, []  # type: ignore[var-annotated]

    def suggest(self, trial_id: str) -> Any:
        self.n += 1
        return {"x": self.n - 1} if self.n <= self.limit else Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.reported.append(["result", result["loss"]])

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.reported.append(["complete", result and result["loss"], error])

    def save(self, checkpoint_path: str) -> None:
        open(checkpoint_path, "w").write(str(self.n))

    def restore(self, checkpoint_path: str) -> None:
        self.n = int(open(checkpoint_path).read())


def _train(config: dict[str, Any]) -> None:
    for number in range(2):
        tune.report({"loss": config["x"] + number})


def _fit(
    folder: str, search: Any, samples: int = 3, space: Any = None, trainable: Any = _train, **kwargs: Any
) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space or {},
        tune_config=tune.TuneConfig(
            search_alg=search, num_samples=samples, **{"metric": "loss", "mode": "min", **kwargs}
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()


@probe
def own_searchers(folder: str) -> dict[str, Any]:
    one = Counting()
    grid = _fit(folder, one, max_concurrent_trials=1)

    def fails(config: dict[str, Any]) -> None:
        tune.report({"loss": 1})
        raise ValueError("x")

    failing = Counting()
    _fit(folder, failing, 1, trainable=fails)
    finished = _fit(folder, Counting(2), 5)
    limited = ConcurrencyLimiter(Counting(), max_concurrent=1)
    return {
        "configs": [r.config for r in grid],
        "reported": one.reported,
        "reported failure": failing.reported,
        "FINISHED": len(finished),
        "a space as well": lambda: sorted(str(r.config) for r in _fit(folder, Counting(), 2, {"y": 5})),
        "a space with domains": lambda: [
            sorted(r.config) for r in _fit(folder, Counting(), 1, {"y": tune.uniform(0, 1)})
        ],
        "limited": [r.config["x"] for r in _fit(folder, limited, 3)],
        "repeated": lambda: sorted(
            [r.config["x"], r.config["__trial_index__"]] for r in _fit(folder, Repeater(Counting(), repeat=2), 4)
        ),
        "metric given by TuneConfig": [one.metric, one.mode],
        "samples of -1": lambda: len(_fit(folder, Counting(3), -1)),
        "a failing suggest": lambda: _fit(folder, _Raises()),
        "suggest returns a list": lambda: _fit(folder, _Lists()),
    }


class _Raises(Counting):
    def suggest(self, trial_id: str) -> Any:
        raise KeyError("suggest")


class _Lists(Counting):
    def suggest(self, trial_id: str) -> Any:
        return [1]


@probe
def interface(folder: str) -> dict[str, Any]:
    searcher = Counting(metric="loss", mode="min")
    limiter = ConcurrencyLimiter(Counting(), max_concurrent=2)
    searcher.save_to_dir(folder, "abc")
    other = Counting()
    saved = sorted(name for name in os.listdir(folder))
    searcher.n = 7
    searcher.save_to_dir(folder, "abd")
    other.restore_from_dir(folder)
    batch = ConcurrencyLimiter(Counting(), max_concurrent=2, batch=True)
    return {
        "attributes": [searcher.metric, searcher.mode, Searcher.FINISHED, Searcher.CKPT_FILE_TMPL],
        "saved": saved,
        "restored": other.n,
        "limited": [limiter.suggest("a"), limiter.suggest("b"), limiter.suggest("c")],
        "again": [limiter.on_trial_complete("a", {"loss": 1}), limiter.suggest("d")],
        "batch": [batch.suggest("a"), batch.suggest("b"), batch.suggest("c")],
        "batch, one over": [batch.on_trial_complete("a", {"loss": 1}), batch.suggest("d")],
        "batch, both over": [batch.on_trial_complete("b", {"loss": 1}), batch.suggest("e")],
        "limiter of a limiter": raised(lambda: ConcurrencyLimiter(limiter, max_concurrent=1).suggest("z") and None),
        "limiter of None": raised(lambda: ConcurrencyLimiter(Counting(), max_concurrent=None)),
        "limiter of zero": raised(lambda: ConcurrencyLimiter(Counting(), max_concurrent=0)),
        "limiter of a random search": raised(lambda: ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=1)),
        "repeater of a limiter": raised(lambda: Repeater(limiter, repeat=2).searcher is limiter),
        "bad mode": raised(lambda: Counting(metric="a", mode="up")),
        "metric and no mode": raised(lambda: Counting(metric="a").mode),
        "lists": raised(lambda: Counting(metric=["a", "b"], mode=["min", "max"]).metric),
        "lists of two lengths": raised(lambda: Counting(metric=["a", "b"], mode=["min"])),
        "set_search_properties": searcher.set_search_properties("other", "max", {}),
        "base suggest": raised(lambda: Searcher().suggest("a")),
        "base save": raised(lambda: Searcher().save("a")),
        "base on_trial_complete": raised(lambda: Searcher().on_trial_complete("a")),
        "base on_trial_result": raised(lambda: Searcher().on_trial_result("a", {})),
        "base add_evaluated_point": raised(lambda: Searcher().add_evaluated_point({}, 1)),
        "base set_max_concurrency": raised(lambda: Searcher().set_max_concurrency(1)),
        "create_searcher": [type(create_searcher(name)).__name__ for name in ("random", "variant_generator")],
        "create optuna": raised(lambda: type(create_searcher("optuna", metric="a", mode="min")).__name__),
        "create unknown": raised(lambda: create_searcher("nothing")),
    }


@probe
def optuna(folder: str) -> dict[str, Any]:
    space = {"x": tune.uniform(0, 10), "c": tune.choice(["a", "b"]), "n": {"k": tune.randint(0, 5)}, "f": 7}

    def values(search: Any, count: int = 12) -> Any:
        found = []
        for number in range(count):
            config = search.suggest(str(number))
            found.append({k: round(v, 9) if isinstance(v, float) else v for k, v in config.items() if k != "f"})
            search.on_trial_complete(str(number), {"loss": config["x"] * 2, "training_iteration": 1})
        return found

    def make(**kwargs: Any) -> Any:
        return OptunaSearch(space, **{"metric": "loss", "mode": "min", "seed": 4, **kwargs})

    saved = make()
    values(saved, 3)
    saved.save(f"{folder}/s")
    restored = make()
    restored.restore(f"{folder}/s")

    def define(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_float("x", 0, 1)
        if kind == "a":
            trial.suggest_int("depth", 1, 3)
        return {"const": 5}

    by_run = OptunaSearch(define, metric="loss", mode="min", seed=3)
    return {
        "suggestions": values(make()),
        "a constant in a suggestion": "f" in make().suggest("a"),
        "points first": values(make(points_to_evaluate=[{"x": 1.5, "c": "a", "n": {"k": 2}}]), 2),
        "partial points": lambda: values(make(points_to_evaluate=[{"x": 1.5}]), 2),
        "evaluated": lambda: values(
            make(points_to_evaluate=[{"x": 1.5, "c": "a", "n/k": 2}], evaluated_rewards=[0.3]), 2
        ),
        "lengths differ": lambda: make(points_to_evaluate=[{"x": 1.5}], evaluated_rewards=[1, 2]),
        "defined by run": lambda: values(by_run, 4),
        "restored": lambda: [restored.suggest("99") == saved.suggest("99")],
        "unresolved": lambda: OptunaSearch({"x": 1, "y": tune.grid_search([1, 2])}).suggest("a"),
        "a grid": lambda: OptunaSearch({"y": tune.grid_search([1, 2])}, metric="a", mode="min"),
        "convert_search_space": lambda: sorted(OptunaSearch.convert_search_space(space)),
        "convert a grid": lambda: OptunaSearch.convert_search_space({"y": tune.grid_search([1])}),
        "convert a sample_from": lambda: OptunaSearch.convert_search_space({"y": tune.sample_from(lambda: 1)}),
        "no space": lambda: OptunaSearch(metric="a", mode="min").suggest("a"),
        "no metric": lambda: OptunaSearch(space).suggest("a") is not None,
        "bad mode": lambda: OptunaSearch(space, metric="a", mode="up"),
        "a space twice": lambda: make().set_search_properties("loss", "min", space),
        "two metrics": lambda: sorted(
            OptunaSearch(space, metric=["a", "b"], mode=["min", "max"], seed=1).suggest("q").keys() - {"f"}
        ),
        "in an experiment": lambda: [
            {k: round(v, 9) if isinstance(v, float) else v for k, v in r.config.items()}
            for r in _fit(folder, OptunaSearch(seed=5), 4, space, max_concurrent_trials=1)
        ],
        "randn": lambda: OptunaSearch.convert_search_space({"y": tune.randn()}),
        "quantized": lambda: [
            round(
                OptunaSearch({"q": tune.quniform(0, 1, 0.25)}, metric="a", mode="min", seed=1).suggest("a")["q"], 6
            ),
            OptunaSearch({"q": tune.qrandint(0, 20, 5)}, metric="a", mode="min", seed=1).suggest("a")["q"],
            OptunaSearch({"q": tune.lograndint(1, 100)}, metric="a", mode="min", seed=1).suggest("a")["q"],
        ],
    }


@probe
def hyperopt(folder: str) -> dict[str, Any]:
    from hyperopt import hp

    space = {"x": tune.uniform(0, 10), "c": tune.choice(["a", "b"]), "n": {"k": tune.randint(0, 5)}, "f": 7}

    def values(search: Any, count: int = 8) -> Any:
        found = []
        for number in range(count):
            config = search.suggest(str(number))
            found.append({k: round(float(v), 9) if k == "x" else str(v) for k, v in config.items()})
            search.on_trial_complete(str(number), {"loss": config["x"] * 2, "training_iteration": 1})
        return found

    def make(given: Any = space, **kwargs: Any) -> Any:
        arguments = {"metric": "loss", "mode": "min", "random_state_seed": 4, "n_initial_points": 4, **kwargs}
        return HyperOptSearch(given, **arguments)

    native = {"x": hp.uniform("x", 0, 10), "c": hp.choice("c", ["a", {"deep": hp.uniform("d", 0, 1)}])}
    return {
        "suggestions": lambda: values(make()),
        "points": lambda: values(make(points_to_evaluate=[{"x": 1.5, "c": "a", "n": {"k": 2}}]), 2),
        "native": lambda: [round(c["x"], 9) for c in values(make(native), 4)],
        "a grid": lambda: make({"x": tune.grid_search([1])}).suggest("a"),
        "convert": lambda: sorted(HyperOptSearch.convert_search_space(space)),
        "no metric": lambda: sorted(HyperOptSearch(space).suggest("a")),
        "bad mode": lambda: HyperOptSearch(space, metric="a", mode="up"),
        "types": lambda: {k: type(v).__name__ for k, v in make().suggest("a").items()},
    }
