"""The search of ``algorithm: auto``: a model over a rung-aware view of all trials.

In this order: the user's points, evenly spread ones until `startup` points are there, and then of a hundred
suggestions sixty by the model and forty at random: on the development tasks of benchmarks/quality the Gaussian
process did better with that mix than with ten at random and ten near the best point. With a prior its center comes
after the user's points, and a share of the others is drawn from it (`trialpod.tune.search.auto.prior`).

Invariants:

* No point is suggested twice, unless `repeats` allows it. When all points of a discrete space were tried, the search
  is over.
* Values of different rungs never meet (`trialpod.tune.search.auto.view`).
* A suggestion is a function of the arguments, of the results before it, and of its number.
"""

from __future__ import annotations

import math
import random
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

_WIDTHS = (0.2, 0.1, 0.05)
"""How far from a good trial its neighbours are drawn, as shares of a dimension's range."""
_TOP = 5
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
        warm_start: the directory or URI of an earlier experiment to learn from.

    Raises:
        InvalidInputError: an argument cannot be used, or NumPy or threadpoolctl (for "tpe" also Optuna) is not
            installed.
    """

    ABOUT = (
        "`pip install numpy threadpoolctl`",
        "the default beside the scheduler `auto`: learns from paused trials",
    )

    LIBRARY: ClassVar = (("numpy", "numpy"), ("threadpoolctl", "threadpoolctl"))
    _OBJECTS: ClassVar = ("_model", "_view", "_prior")

    _model: Model
    _view: View
    _prior: Prior | None

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
        self._prior = None
        self._tried: set[str] = set()

    def _open(self) -> None:
        self._model = make_model(self._model_name, self.flat, self._model_trials)
        self._prior = None if self._given_prior is None else Prior(self.flat, self._given_prior)
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
        """Return what the prior proposes as suggestion `number`, None where it is another one's turn."""
        prior = self._prior
        if prior is None:
            return None
        center = prior.center(random.Random(f"{self.seed}/prior"))
        if key(center) not in self._tried:
            return center
        rng = random.Random(f"{self.seed}/{number}/prior")
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

    def _note_ask(self, trial_id: str, values: Values) -> None:
        number = len(self._values)
        if number not in self._view.records:  # what the base has not taken: a suggestion of ours
            self._take(number, values)
        super()._note_ask(trial_id, values)

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
        _, number, rung, loss = entry
        self._view.reach(number, rung, math.nan if loss is None else loss)

    def _signed(self, value: float) -> float:
        return -value if self._mode == "max" else value
