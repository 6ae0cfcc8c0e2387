"""Models that propose where to try next, behind one interface; `MODELS` names them.

A model is asked with the view of all trials and a seed; it keeps nothing of a suggestion but caches, so that an
earlier one needs no computation after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from trialpod.tune.search.auto.points import drawn
from trialpod.tune.search.auto.view import View
from trialpod.tune.search.spaces.flat_space import FlatSpace, Values

GOOD = 25
"""So many trials TPE takes as the good ones at most; they are always in its model."""


class Model(Protocol):
    """Proposes points."""

    def add(self, number: int, values: Values) -> None:
        """Note the point of a trial."""
        ...

    def propose(self, view: View, seed: int) -> Values:
        """Return a point."""
        ...


class RandomModel:
    """Draws at random: what any other model has to beat."""

    def __init__(self, flat: FlatSpace, most: int) -> None:
        self._flat = flat

    def add(self, number: int, values: Values) -> None:
        """Note nothing."""

    def propose(self, view: View, seed: int) -> Values:
        """Return a random point."""
        return drawn(self._flat, random.Random(seed))


class TPEModel:
    """Optuna's multivariate TPE, fitted to the scores of the view.

    Sources: Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011); Watanabe, "Tree-Structured Parzen
    Estimator" (2023). Trials of which nothing is known yet are RUNNING, from which TPE keeps away; all others
    COMPLETE with their score, also the paused ones and those that run on from a rung.

    Args:
        flat: the space.
        most: how many trials the model is made of: of more, the best and a sample that does not change with time.
    """

    def __init__(self, flat: FlatSpace, most: int) -> None:
        import optuna  # type: ignore[import-not-found, unused-ignore]

        from trialpod.tune.search.auto.view_storage import ViewStorage
        from trialpod.tune.search.optuna.static_space import StaticSpace

        self._space = StaticSpace(flat)
        self._most = most
        self._storage = ViewStorage()
        with _quiet():
            self._sampler = optuna.samplers.TPESampler(
                n_startup_trials=1,
                multivariate=True,
                group=self._space.conditional,
                constant_liar=True,
                seed=0,
            )
            self._storage.open_study([optuna.study.StudyDirection.MINIMIZE], "auto")
            self._study = optuna.study.Study(study_name="auto", storage=self._storage, sampler=self._sampler)

    def add(self, number: int, values: Values) -> None:
        """Note the point of a trial."""
        self._storage.add_point(number, *self._space.parameters(values))

    def propose(self, view: View, seed: int) -> Values:
        """Return the point with the best expected improvement among those that TPE draws."""
        from trialpod.tune.search.optuna.samplers import reseed

        scores = view.scores()
        self._storage.show(self._selected(scores, view))
        reseed(self._sampler, seed)
        with _quiet():
            trial = self._study.ask()
            try:
                return self._space.suggest(trial)
            finally:
                self._storage.forget(trial._trial_id)  # noqa: SLF001  # storages know trials by it

    def _selected(self, scores: Mapping[int, float | None], view: View) -> dict[int, float | None]:
        if len(scores) <= self._most:
            return dict(scores)
        running = [number for number, score in scores.items() if score is None and view.records[number].live]
        known = sorted((score, number) for number, score in scores.items() if score is not None)
        chosen = {number for _, number in known[: 2 * GOOD]}
        for number in sorted((number for _, number in known[2 * GOOD :]), key=_hash):
            if len(chosen) >= self._most:
                break
            chosen.add(number)
        return {number: scores[number] for number in sorted({*chosen, *running})}


def _gaussian_process(flat: FlatSpace, most: int) -> Model:
    from trialpod.tune.search.auto.gaussian_process import GaussianProcessModel

    return GaussianProcessModel(flat, most)


MODELS: Mapping[str, Callable[[FlatSpace, int], Model]] = {
    "tpe": TPEModel,
    "gp": _gaussian_process,
    "random": RandomModel,
}
"""Models by their names. Another one becomes the default when it wins on benchmarks/quality's development tasks."""


def make_model(name: str, flat: FlatSpace, most: int) -> Model:
    """Make the model of this name.

    Args:
        name: one of `MODELS`.
        flat: the space.
        most: how many trials it is made of at most.
    """
    return MODELS[name](flat, most)


def _hash(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=8).digest()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
