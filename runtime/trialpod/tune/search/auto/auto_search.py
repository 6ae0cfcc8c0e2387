"""The search of ``algorithm: auto``: a model over a rung-aware view of all trials.

In this order: the user's points, evenly spread ones until `startup` points are there, and then of a hundred
suggestions sixty by the model and forty at random: on the development tasks of benchmarks/quality the Gaussian
process did better with that mix than with ten at random and ten near the best point. With a prior its center comes
after the user's points, and a share of the others is drawn from it (`trialpod.tune.search.auto.prior`). Of an earlier
experiment the best configs are tried, and what they have in common is such a prior: its values are not values of this
experiment, which may have other data, so the model never sees them.

Invariants:

* No point is suggested twice, unless `repeats` allows it. When all points of a discrete space were tried, the search
  is over.
* Values of different rungs never meet (`trialpod.tune.search.auto.view`).
* A suggestion is a function of the arguments, of the results before it, and of its number.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.auto.models import MODELS, Model, make_model
from trialpod.tune.search.auto.points import drawn, key, neighbour, spread, untried
from trialpod.tune.search.auto.prior import Prior, check_shape
from trialpod.tune.search.auto.view import COMPLETE, View
from trialpod.tune.search.library import require
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.searcher import Metric, Mode, Searcher
from trialpod.tune.search.spaces.flat_space import Values
from trialpod.tune.search.warm_start import Row, read_experiment

_WIDTHS = (0.2, 0.1, 0.05)
"""How far from a good trial its neighbours are drawn, as shares of a dimension's range."""
_TOP = 5
_LEAST_HISTORY, _MOST_HISTORY = 3, 20
"""Of an earlier experiment a tenth of the trials counts as good, but at least and at most so many."""
_HISTORY_POINTS = 3
"""So many of them are suggested."""
_LEAST_MODEL = 100


@algorithm("auto")
class AutoSearch(LibrarySearcher):
    """Searches with a model of all trials, each by its rank in the highest rung that it reached.

    Args:
        space: the search space, when the experiment has none.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first; parameters that one leaves out are drawn at random.
        seed: None takes the experiment's.
        startup: how many points are tried before the model is asked, the user's among them.
        local_share: of the suggestions after these, how many are drawn near the best trials; 0 to 1.
        random_share: how many are drawn at random; 0 to 1.
        model: "gp", a Gaussian process; "tpe", Optuna's; or "random" to do without.
        model_trials: of how many trials the model is made, at least 100: of more, the best and a sample. "gp" takes
            200 of them at most.
        repeats: whether a point may be suggested again: for a noisy metric in a small discrete space.
        prior: what good values are believed to be, ``{"lr": {"center": 0.01, "spread": 0.1}}``. Spread, by default
            0.2, is a share of the parameter's range; of a choice it is how often any option is drawn.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment, with the same search space or one that overlaps
            it: its best configs are tried first, and the search looks around them while that pays.

    Raises:
        InvalidInputError: an argument cannot be used, or NumPy or threadpoolctl (for "tpe" also Optuna) is not
            installed.
    """

    ABOUT = (
        "`pip install numpy threadpoolctl`",
        "the default beside the scheduler `auto`: learns from paused trials",
    )

    LIBRARY: ClassVar = (("numpy", "numpy"), ("threadpoolctl", "threadpoolctl"))
    _OBJECTS: ClassVar = ("_model", "_view", "_prior", "_learned")

    _model: Model
    _view: View
    _prior: Prior | None
    _learned: Prior | None
    _earlier: list[tuple[list[Row], str, str]]  # experiments that were given before the space

    # Rungs and ends are all that it learns from: reports between them need not reach it.
    on_trial_result = Searcher.on_trial_result

    def __init__(
        self,
        space: dict[str, Any] | None = None,
        metric: Metric = None,
        mode: Mode = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        *,
        seed: int | None = None,
        startup: int = 10,
        local_share: float = 0.0,
        random_share: float = 0.4,
        model: str = "gp",
        model_trials: int = 500,
        repeats: bool = False,
        prior: dict[str, dict[str, Any]] | None = None,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start)
        for name, share in (("local_share", local_share), ("random_share", random_share)):
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise InvalidInputError(
                    f"AutoSearch: {name} must be a number from 0 to 1, got {share!r}", parameter=name
                )
        if local_share + random_share > 1:
            raise InvalidInputError(
                f"AutoSearch: local_share and random_share are {local_share + random_share:g} together; they are "
                "shares of all suggestions, so at most 1",
                parameter="local_share",
            )
        for name, number, least in (("startup", startup, 1), ("model_trials", model_trials, _LEAST_MODEL)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidInputError(
                    f"AutoSearch: {name} must be a whole number of at least {least}, got {number!r}", parameter=name
                )
        if model not in MODELS:
            guess = nearest(str(model), MODELS)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InvalidInputError(
                f"AutoSearch: unknown model {model!r}.{hint} Known are {', '.join(sorted(MODELS))}", parameter="model"
            )
        if model == "tpe":
            require("optuna", "optuna>=5", 'AutoSearch(model="tpe")')
        if not isinstance(repeats, bool):
            raise InvalidInputError(
                f"AutoSearch: repeats must be True or False, got {repeats!r}", parameter="repeats"
            )
        if prior is not None:
            check_shape(prior)
        self._given_prior = prior
        self._startup = startup
        self._shares = local_share, random_share
        self._model_name = model
        self._model_trials = model_trials
        self._repeats = repeats

    # -- what was known before --------------------------------------------------------------------------------------

    def add_evaluated_experiment(self, place: str | os.PathLike[str], metric: str | None = None) -> int:
        """Try the best configs of an earlier experiment, and look around them while that pays.

        Args:
            place: its directory or its URI ("s3://bucket/prefix/name").
            metric: its name there; None takes this searcher's.

        Returns:
            How many of its trials could be used.

        Raises:
            InvalidInputError: there is no experiment, or nothing in it can be used here.
            StorageError: it cannot be read.
        """
        rows, text = read_experiment(place, self.open_earlier), os.fspath(place)
        if not self._opened and not self._can_start:
            self._earlier.append((rows, metric or "", text))
            return len(rows)
        self._ready()
        return self._learn(rows, metric or str(self._metric), text)

    def overlap(self, lessons: list[list[Any]]) -> float:
        """Return of which share of the parameters an earlier experiment has values, 0 to 1.

        Args:
            lessons: what `read_earlier` returned.
        """
        always = sum(d.parent is None for d in self.flat.dimensions)
        return max((len(values) / max(1, always) for _, best in lessons for values in best), default=0.0)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called; the model is built when it is needed."""
        earlier = self._earlier
        super().set_state(state)
        self._earlier = [] if self._warmed else earlier

    def _start(self) -> None:
        super()._start()
        while self._earlier:
            rows, metric, text = self._earlier.pop(0)
            self._learn(rows, metric or str(self._metric), text)

    def _learn(self, rows: list[Row], metric: str, place: str) -> int:
        longest = max((_length(row.result) for row in rows), default=0)
        known: list[tuple[float, int, Values]] = []
        for number, (config, row, _) in enumerate(rows):
            value, values = real_number(row.get(metric)), self.flat.encode(config, fitting=True)
            # One that was given up early says little, and its value compares with nothing.
            if value is not None and math.isfinite(value) and values and 2 * _length(row) >= longest:
                known.append((self._signed(float(value)), number, values))
        if not known:
            why = (
                f"of its {len(rows)} trials that reported none has {metric!r} and a value of a parameter that is "
                "searched here"
                if rows
                else "none of its trials has a result that can be read"
            )
            raise InvalidInputError(
                f"AutoSearch: nothing can be learned from {place}: {why}; name another experiment, or leave "
                "warm_start out",
                parameter="warm_start",
            )
        count = min(max(_LEAST_HISTORY, len(known) // 10), _MOST_HISTORY)
        best = [values for _, _, values in sorted(known, key=lambda each: each[:2])[:count]]
        self._log.append(["history", best])
        self._remember(best)
        return len(known)

    def _remember(self, best: list[Values]) -> None:
        self._history += best
        self._learned = Prior.learned(self.flat, self._history)

    # -- what happens to trials -------------------------------------------------------------------------------------

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Learn the value of a trial at a rung."""
        number = self._known(trial_id)
        value = real_number(result.get(str(self._metric)))
        if number is None or value is None:
            return
        loss = self._signed(float(value))
        self._log.append(["rung", number, rung, loss if math.isfinite(loss) else None])
        self._view.reach(number, rung, loss)

    # -- LibrarySearcher --------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        super()._clear()
        self._view = View()
        self._prior = self._learned = None
        self._history: list[Values] = []  # of an earlier experiment, the best first
        self._earlier = []
        self._tried: set[str] = set()

    def _open(self) -> None:
        self._model = make_model(self._model_name, self.flat, self._model_trials)
        self._prior = None if self._given_prior is None else Prior.given(self.flat, self._given_prior)
        self._learned, self._history = None, []
        self._view = View()
        self._tried = set()

    def _ask(self, number: int, seed: int) -> Values | str | None:
        rng = random.Random(seed)
        believed = self._believed(number)
        if believed is not None:
            first = believed

            def propose() -> Values:
                return drawn(self.flat, rng)
        elif number < self._startup or self._view.is_empty:
            offset = random.Random(f"{self.seed}/spread")
            first = spread(self.flat, number, offset)

            def propose() -> Values:
                return drawn(self.flat, rng)
        else:
            share = rng.random()
            local, at_random = self._shares

            def propose() -> Values:
                if share < local:
                    return self._near_the_best(rng)
                if share < local + at_random:
                    return drawn(self.flat, rng)
                return self._model.propose(self._view, rng.getrandbits(32))

            first = propose()
        if self._repeats:
            return first
        found = untried(self.flat, self._tried, first, rng, propose)
        return self.FINISHED if found is None else found

    def _believed(self, number: int) -> Values | None:
        """Return what a prior proposes as suggestion `number`, None where it is another one's turn."""
        firsts: list[Values] = []
        if self._prior is not None:
            firsts.append(self._prior.center(random.Random(f"{self.seed}/prior")))
        for index, values in enumerate(self._history[:_HISTORY_POINTS]):
            rng = random.Random(f"{self.seed}/history/{index}")
            firsts.append(self.flat.canonical({**{d.name: d.draw(rng) for d in self.flat.dimensions}, **values}))
        for first in firsts:
            if key(first) not in self._tried:
                return first
        found = None if self._prior is None else self._drawn_from(self._prior, number, "prior")
        if found is None and self._learned is not None:
            found = self._drawn_from(self._learned, number, "learned")
        return found

    def _drawn_from(self, prior: Prior, number: int, name: str) -> Values | None:
        rng = random.Random(f"{self.seed}/{number}/{name}")
        share = rng.random()
        if share >= prior.share(number, self._startup):
            return None
        scores = self._view.scores().items()
        trust = prior.trust((self._values[each], score) for each, score in scores if score is not None)
        return prior.draw(rng) if share < trust * prior.share(number, self._startup) else None

    def _near_the_best(self, rng: random.Random) -> Values:
        best = self._view.best(_TOP)
        if not best:
            return drawn(self.flat, rng)
        return neighbour(self.flat, self._values[rng.choice(best)], rng, rng.choice(_WIDTHS))

    def _take(self, number: int, values: Values) -> None:
        self._model.add(number, values)
        self._view.begin(number)
        self._tried.add(key(values))

    def _record_ask(self, trial_id: str, values: Values) -> None:
        number = len(self._values)
        if number not in self._view.records:  # what the base has not taken: a suggestion of ours
            self._take(number, values)
        super()._record_ask(trial_id, values)

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        loss = self._loss(ending)
        if loss is None:
            self._view.end(number, diverged=True)
            return
        if ending.status == "complete":
            self._view.reach(number, COMPLETE, loss)
            self._view.end(number)
        else:
            self._view.stop(number, ending.step, loss)

    def _replay_other(self, entry: list[Any]) -> None:
        if entry[0] == "history":
            self._remember(entry[1])
            return
        _, number, rung, loss = entry
        self._view.reach(number, rung, math.nan if loss is None else loss)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _signed(self, value: float) -> float:
        return -value if self._mode == "max" else value


def _length(row: Mapping[str, Any]) -> float:
    """Return for how long a trial was trained when it reported this."""
    length = real_number(row.get("training_iteration"))
    return float(length) if length is not None and math.isfinite(length) else 1.0
