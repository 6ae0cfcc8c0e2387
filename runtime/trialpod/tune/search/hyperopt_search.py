"""Tree-structured Parzen estimators as HyperOpt has them.

Source: Bergstra, Bardenet, Bengio, Kegl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011. HyperOpt's
`suggest` is a function of its history and a seed, so a restored searcher needs nothing but the history. A stopped
trial counts with its last value; one that failed counts as failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.as_ray import decides_as_ray
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.sample import Float, equal
from trialpod.tune.search.searcher import Searcher
from trialpod.tune.search.spaces.flat_space import Dimension, FlatSpace, Values
from trialpod.tune.search.spaces.native_spaces import converted


@algorithm("hyperopt")
class HyperOptSearch(LibrarySearcher):
    """Searches with HyperOpt.

    Args:
        space: the search space, when the experiment has none; also one of HyperOpt's own (``hp.uniform(...)``), whose
            `points_to_evaluate` are given by its labels, choices by their values, or by their numbers; labels that
            one leaves out are drawn at random.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        n_initial_points: suggestions drawn at random before the model begins.
        random_state_seed: None takes the experiment's seed.
        gamma: share of the trials that count as good, between 0 and 1.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.
        max_concurrent: how many trials may be unfinished at a time.
        compatible: draw the seeds of all suggestions from one generator, as Ray's HyperOptSearch does, so that the
            same seed suggests the same. None does so under the name ``ray``.

    Raises:
        InvalidInputError: an argument cannot be used, or HyperOpt is not installed.
    """

    ABOUT = ("`pip install 'trialpod[hyperopt]'`", "experiments that used it in Ray")

    LIBRARY: ClassVar = (("hyperopt", "hyperopt>=0.3"),)
    NORMAL: ClassVar = True
    _OBJECTS: ClassVar = ("_domain", "_history", "_hyperopt", "_docs")

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("HyperOptSearch", spec)

    def __init__(
        self,
        space: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
        *,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
        max_concurrent: int | None = None,
        compatible: bool | None = None,
    ) -> None:
        self._as_ray = decides_as_ray(self, compatible)
        super().__init__(
            space, metric, mode, points_to_evaluate, evaluated_rewards, random_state_seed, warm_start, max_concurrent
        )
        if isinstance(n_initial_points, bool) or not isinstance(n_initial_points, int) or n_initial_points < 1:
            raise InvalidInputError(
                f"HyperOptSearch: n_initial_points must be 1 or more, got {n_initial_points!r}",
                parameter="n_initial_points",
            )
        if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 < gamma < 1:
            raise InvalidInputError(
                f"HyperOptSearch: gamma must be between 0 and 1, got {gamma!r}", parameter="gamma"
            )
        self._given_seed = random_state_seed
        self._startup = n_initial_points
        self._gamma = gamma

    def get_state(self) -> dict[str, Any]:
        """Return the log, and the seed that was given."""
        return {**super().get_state(), "given_seed": self._given_seed}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called, also in a searcher that was given no seed."""
        super().set_state(state)
        self._given_seed = state.get("given_seed", self._given_seed)

    def _open(self) -> None:
        self._hyperopt = require("hyperopt", "hyperopt>=0.3", "HyperOptSearch")
        space: Any = self._given_space
        if not _is_native(space):
            space = {d.name: self._variable(d) for d in self.flat.dimensions}
        self._domain = self._hyperopt.base.Domain(dict, space)
        self._history = self._hyperopt.Trials()
        self._docs: dict[int, dict[str, Any]] = {}

    def _ask(self, number: int, seed: int) -> Values:
        if self._as_ray:
            seed = self._drawn_seed(number - self._presets_used)
        with seeded(seed):
            (doc,) = self._hyperopt.tpe.suggest(
                [number], self._domain, self._history, seed, n_startup_jobs=self._startup, gamma=self._gamma,
                verbose=False,
            )  # fmt: skip
        found = {name: getattr(v[0], "item", lambda v=v: v[0])() for name, v in doc["misc"]["vals"].items() if v}
        values = found if self._native else self.flat.canonical(found)
        self._take(number, values)
        return values

    def _drawn_seed(self, number: int) -> int:
        import numpy as np

        seed = self.seed % 2**32 if self._given_seed is None else self._given_seed
        return int(np.random.RandomState(seed).randint(2**31 - 1, size=number + 1)[number])

    def _take(self, number: int, values: Values) -> None:
        full = values if self._native else self.flat.complete(values)
        labels = self._domain.params if self._native else full
        misc = {
            "tid": number,
            "cmd": self._domain.cmd,
            "workdir": None,
            "idxs": {name: [number] if name in full else [] for name in labels},
            "vals": {name: [full[name]] if name in full else [] for name in labels},
        }
        (doc,) = self._history.new_trial_docs([number], [None], [{"status": "new"}], [misc])
        self._history.insert_trial_doc(doc)
        self._history.refresh()
        self._docs[number] = self._history._dynamic_trials[-1]  # noqa: SLF001  # the one that it will read

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        base = self._hyperopt.base
        doc, loss = self._docs[number], self._loss(ending)
        doc["state"] = base.JOB_STATE_ERROR if loss is None else base.JOB_STATE_DONE
        doc["result"] = {"status": "fail"} if loss is None else {"status": "ok", "loss": loss}
        self._history.refresh()

    # -- a space of HyperOpt's own: suggestions are values by its labels, of those that are active --

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over an earlier suggestion; compute it again where the config does not have the labels."""
        if self._native:
            Searcher.adopt(self, trial_id, config)
        else:
            super().adopt(trial_id, config)

    @property
    def _native(self) -> bool:
        return _is_native(self._given_space)

    def _prepare_space(self, space: Any) -> FlatSpace | None:
        return None if _is_native(space) else super()._prepare_space(space)

    def _values_of(self, config: dict[str, Any]) -> Values:
        if not self._native:
            return super()._values_of(config)
        values = self._numbered(config)
        active = list(self._active(values))
        missing = [label for label in active if label not in values]
        if missing:
            raise InvalidInputError(f"HyperOptSearch: the label {missing[0]!r} is missing in {config!r}")
        return {label: values[label] for label in active}

    def _active(self, values: dict[str, Any]) -> Iterator[str]:
        """Yield the active labels; `values` may get the values of those already yielded meanwhile."""
        nodes = [self._domain.expr]
        while nodes:
            node = nodes.pop()
            label = _label(node)
            if label is not None:
                yield label
                continue
            options = node.inputs()
            chosen = _label(node.pos_args[0]) if node.name == "switch" else None
            if chosen is not None:
                yield chosen
                options = [node.pos_args[1 + values[chosen]]] if chosen in values else []
            nodes += reversed(options)

    def _numbered(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a point with the numbers of its choices in place of their values."""
        unknown = sorted(name for name in point if name not in self._domain.params)
        if unknown:
            raise InvalidInputError(
                f"HyperOptSearch: the search space has no label {unknown[0]!r}; known are "
                f"{', '.join(sorted(self._domain.params))}"
            )
        found = dict(point)
        for node in self._hyperopt.pyll.dfs(self._domain.expr):
            label = _label(node.pos_args[0]) if node.name == "switch" else None
            if label is None or label not in point:
                continue
            options = [_constant(self._hyperopt.pyll, option) for option in node.pos_args[1:]]
            numbers = [number for number, option in enumerate(options) if equal(option, point[label])]
            if numbers:
                found[label] = numbers[0]
            elif point[label] in range(len(options)):
                found[label] = int(point[label])
            else:
                nested = any(isinstance(option, self._hyperopt.pyll.Apply) for option in options)
                allowed = f"a number of an option, 0 to {len(options) - 1}" if nested else f"one of {options}"
                raise InvalidInputError(
                    f"HyperOptSearch: points_to_evaluate: {label!r} cannot be {point[label]!r}; it is {allowed}",
                    parameter="points_to_evaluate",
                )
        return found

    def _config(self, number: int, values: Values) -> dict[str, Any]:
        if not self._native:
            return super()._config(number, values)
        config: dict[str, Any] = self._hyperopt.space_eval(self._given_space, dict(values))
        return config

    def _filled(self, point: dict[str, Any], number: int) -> Values:
        if not self._native:
            return super()._filled(point, number)
        values = self._numbered(point)
        found: Values = {}
        for label in self._active(values):
            if label not in values:
                values[label] = self._drawn(label, self._seed_of(f"{number}/point/{label}"))
            found[label] = values[label]
        return found

    def _drawn(self, label: str, seed: int) -> Any:
        import numpy as np

        drawn = self._hyperopt.pyll.stochastic.sample(self._domain.params[label], np.random.default_rng(seed))
        return getattr(drawn, "item", lambda: drawn)()

    def _variable(self, d: Dimension) -> Any:
        hp = self._hyperopt.hp
        if d.kind == "choice":
            return hp.choice(d.name, list(range(len(d.options))))
        if d.kind == "normal":
            assert isinstance(d.domain, Float)
            return hp.normal(d.name, d.domain.mean, d.domain.sd)
        if d.kind == "real":
            return (
                hp.loguniform(d.name, math.log(d.low), math.log(d.high))
                if d.log
                else hp.uniform(d.name, d.low, d.high)
            )
        if self._as_ray and d.q in (None, 1):
            if not d.log:
                return hp.uniformint(d.name, int(d.low), int(d.high))
            return hp.qloguniform(d.name, math.log(d.low), math.log(d.high), 1.0)
        # HyperOpt rounds; half a step more at both ends gives the first and the last value their full weight.
        low, high = d.low - 0.499, d.high + 0.499
        return (
            hp.qloguniform(d.name, math.log(low), math.log(high), 1) if d.log else hp.quniform(d.name, low, high, 1)
        )


def _label(node: Any) -> str | None:
    """Return the label of a parameter; None for every other expression."""
    return node.arg["label"].obj if node.name == "hyperopt_param" else None


def _constant(pyll: Any, option: Any) -> Any:
    """Return the value of an option; for one with parameters in it, its expression."""
    if any(node.name == "hyperopt_param" for node in pyll.dfs(option)):
        return option
    return pyll.rec_eval(option)


def _is_native(space: Any) -> bool:
    """Return whether a space, or something in it, is an expression of HyperOpt's."""
    if isinstance(space, dict):
        return any(map(_is_native, space.values()))
    if isinstance(space, (list, tuple)):
        return any(map(_is_native, space))
    return type(space).__module__.startswith("hyperopt.pyll")
