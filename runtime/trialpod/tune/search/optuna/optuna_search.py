"""Optuna's samplers as a searcher: TPE (the default), GP, CMA-ES, NSGA-II and III, QMC, random, grid, brute force.

Source: Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019; each sampler names
its papers in Optuna's documentation.

What the study receives: a trial that runs is RUNNING, so that TPE keeps other suggestions away from it; one that a
scheduler stopped or paused is PRUNED with its last value and step, and RUNNING again when it continues; one that
failed, or whose last result lacks a finite number, is FAIL; every other one COMPLETE. Of intermediate values the
study keeps the latest of each trial, which is all that a sampler of Optuna looks at.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.as_ray import decides_as_ray
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.optuna.samplers import STATELESS, make_sampler, parse_sampler, reseed
from trialpod.tune.search.optuna.static_space import StaticSpace
from trialpod.tune.search.optuna.study_copy import StudyCopy
from trialpod.tune.search.searcher import Metric, Mode, Searcher
from trialpod.tune.search.spaces.flat_space import FlatSpace, Values
from trialpod.tune.search.spaces.native_spaces import converted, original_space
from trialpod.tune.utils.dicts import unflatten_dict

logger = logging.getLogger(__name__)

_LEAST_MODEL = 250
"""Of fewer TPE would take less than 25 as the good ones."""

DefineByRun = Callable[[Any], dict[str, Any] | None]


@algorithm("optuna")
class OptunaSearch(LibrarySearcher):
    """Searches with a sampler of Optuna.

    Args:
        space: the search space, of Tune's or of Optuna's distributions; or a function that is called with an Optuna
            trial, asks it for parameters
            (``trial.suggest_float("lr", ...)``), and may return a dict of further values for the config.
        metric: what to optimise; a list for several objectives.
        mode: "min" or "max"; a list when `metric` is one.
        points_to_evaluate: configs to try first.
        sampler: a name (tpe, gp, cmaes, nsgaii, nsgaiii, qmc, random, grid, bruteforce), a dict of that and the
            sampler's arguments, or a sampler object (from Python).
        study_name: of the study in `storage`.
        storage: an Optuna storage (an object) that gets a copy of all trials, in a study of that name. Ended trials
            that the study has already are learned from before the first suggestion.
        seed: None takes the experiment's.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        constraints: names of metrics that must be 0 or less for a trial to be acceptable.
        model_trials: of how many ended trials the sampler "tpe" makes its model: the best 25, which it takes as the
            good ones, and a random sample of the others; 250 or more. None takes all of them, which costs a tenth
            of a second for a suggestion at 10,000 trials. Several objectives always take all.
        warm_start: the directory or URI of an earlier experiment to learn from.
        compatible: suggest what Ray's OptunaSearch suggests: all suggestions come from one generator with the seed,
            and a trial that a scheduler stopped or paused is COMPLETE, or RUNNING. None does so under the name
            ``ray``.

    Raises:
        InvalidInputError: an argument cannot be used, or Optuna is not installed.
    """

    ABOUT = ("`pip install 'trialpod[optuna]'`", "nearly everything; several objectives; constraints")

    LIBRARY: ClassVar = (("optuna", "optuna>=5"),)
    SEVERAL_METRICS: ClassVar = True
    _OBJECTS: ClassVar = ("_study", "_trials", "_static", "_storage", "_quiet_sampler", "_copy")

    def __init__(
        self,
        space: dict[str, Any] | DefineByRun | None = None,
        metric: Metric = None,
        mode: Mode = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        sampler: Any = None,
        study_name: str | None = None,
        storage: Any = None,
        *,
        seed: int | None = None,
        evaluated_rewards: list[Any] | None = None,
        constraints: list[str] | None = None,
        model_trials: int | None = 1000,
        warm_start: str | None = None,
        compatible: bool | None = None,
    ) -> None:
        self._as_ray = decides_as_ray(self, compatible)
        self._given_seed = seed
        space = original_space(space)
        if self._as_ray and isinstance(space, dict) and not _is_native(space):
            converted("OptunaSearch", space)  # refuses what has no form in Optuna
        if isinstance(space, dict) and _is_native(space):
            space = _NativeSpace(space)
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start)
        if storage is not None and not hasattr(storage, "create_new_study"):
            raise InvalidInputError(
                f"OptunaSearch: storage must be a storage of Optuna, such as RDBStorage(url), got {storage!r}",
                parameter="storage",
            )
        self._user_storage = storage
        self._study_name = study_name or "trialpod"
        self._owner = uuid.uuid4().hex
        self._earlier: list[int] = []  # the first and the last number of trials that the user's study had
        self._copy: StudyCopy | None = None
        self._sampler = "tpe" if sampler is None else sampler
        if isinstance(self._sampler, (str, dict)):
            parse_sampler(self._sampler)
        elif not hasattr(self._sampler, "sample_relative") or isinstance(self._sampler, type):
            raise InvalidInputError(
                f"OptunaSearch: sampler must be a name or a sampler object, got {sampler!r}", parameter="sampler"
            )
        if constraints is not None and (
            not isinstance(constraints, (list, tuple)) or not all(isinstance(name, str) for name in constraints)
        ):
            raise InvalidInputError(
                f"OptunaSearch: constraints must be a list of names of metrics, each of which is met up to 0, "
                f"got {constraints!r}",
                parameter="constraints",
            )
        if model_trials is not None and (
            isinstance(model_trials, bool) or not isinstance(model_trials, int) or model_trials < _LEAST_MODEL
        ):
            raise InvalidInputError(
                f"OptunaSearch: model_trials must be {_LEAST_MODEL} or more, or None for all, got {model_trials!r}",
                parameter="model_trials",
            )
        self._model_trials = model_trials
        self._constraint_names = list(constraints or [])
        self._thresholds: list[Objective] = []
        self._function: DefineByRun | None = space if callable(space) else None
        if self._function is not None and self._points and evaluated_rewards is None:
            for point in self._points:
                if any(isinstance(value, (dict, list)) for value in point.values()):
                    raise InvalidInputError(
                        f"OptunaSearch: points_to_evaluate for a space that is a function name its parameters as the "
                        f"function does, got {point!r}",
                        parameter="points_to_evaluate",
                    )
        self._study: Any = None

    def set_thresholds(self, objectives: Sequence[Objective]) -> None:
        """Take the thresholds of the experiment's metrics as constraints."""
        self._thresholds = [objective for objective in objectives if objective.threshold is not None]

    @property
    def study(self) -> Any:
        """The Optuna study; to be read only."""
        self._start()
        return self._study

    @property
    def _ot_study(self) -> Any:
        """The study, by the name that scripts for Ray use; the user's own where there is a storage."""
        study = self.study
        return study if self._copy is None else self._copy.study

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space as Optuna's distributions, by name."""
        return converted("OptunaSearch", spec)

    # -- LibrarySearcher ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        import copy

        import optuna  # type: ignore[import-not-found, unused-ignore]

        from trialpod.tune.search.optuna.storage import StudyStorage

        sampler = self._sampler
        if isinstance(sampler, (str, dict)):
            with _quiet():
                seed = self._given_seed if self._as_ray and self._given_seed is not None else self._seed_of("sampler")
                sampler = make_sampler(sampler, seed, self._space)
        else:
            sampler = copy.deepcopy(sampler)
        modes = self._mode if isinstance(self._mode, (list, tuple)) else [self._mode]
        self._storage = StudyStorage(self._part(len(modes)))
        directions = [getattr(optuna.study.StudyDirection, "MAXIMIZE" if m == "max" else "MINIMIZE") for m in modes]
        # Not create_study, which writes to the log that there is a new study.
        name = self._study_name
        self._storage.open_study(directions, name)
        self._study = optuna.study.Study(study_name=name, storage=self._storage, sampler=sampler)
        self._study.stop = self._stop
        self._static = StaticSpace(self._space, by_depth=self._as_ray) if self._space is not None else None
        self._finished = False
        self._trials: list[int] = []  # Optuna's id of each point
        if self._user_storage is not None:
            self._copy = StudyCopy(self._user_storage, name, directions, self._owner)

    @property
    def state_from_outside(self) -> bool:
        """True with a study of the user's: the id that its trials carry must be kept from the first on."""
        return self._user_storage is not None

    @property
    def reads_ahead(self) -> bool:
        """Whether there is something to read, and no study of the user's that a copy would write to."""
        return super().reads_ahead and self._user_storage is None

    def _start(self) -> None:
        known = self._warmed
        super()._start()
        if known or self._copy is None:
            return
        first, left_out = len(self._values), 0
        self._earlier = [first, sys.maxsize]  # what is added until then is in that study already
        for parameters, values, pruned in self._copy.earlier():
            try:
                self._add(parameters, values if len(values) > 1 else values[0], False, pruned, 0)
            except (InvalidInputError, ValueError):
                left_out += 1
        self._earlier = [first, len(self._values)]
        if left_out:
            logger.warning(
                "OptunaSearch: %d trials of the study %r are not in the search space, and were left out",
                left_out, self._study_name,
            )  # fmt: skip

    def _record_ask(self, trial_id: str, values: Values) -> None:
        super()._record_ask(trial_id, values)
        if self._copy is not None:
            number = len(self._values) - 1
            self._copy.begin(number, self._storage.get_trial(self._trials[number]))

    def get_state(self) -> dict[str, Any]:
        """Return the log, and what belongs to a study of the user."""
        state = {**super().get_state(), "given_seed": self._given_seed}
        if self._user_storage is not None:
            state.update(owner=self._owner, earlier=self._earlier)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self._given_seed = state.get("given_seed", self._given_seed)
        self._owner = state.get("owner", self._owner)
        self._earlier = state.get("earlier", [])

    def __getstate__(self) -> dict[str, Any]:
        saved = super().__getstate__()
        if _ends_with_process(saved["_user_storage"]):
            saved["_user_storage"] = None
        return saved

    def _copied_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self._made_with
        emptied = {name: type(value)() if _ends_with_process(value) else value for name, value in kwargs.items()}
        return tuple(type(value)() if _ends_with_process(value) else value for value in args), emptied

    def _prepare_space(self, space: Any) -> FlatSpace | None:
        return None if callable(space) else super()._prepare_space(space)

    def _ask(self, number: int, seed: int) -> Values | str | None:
        if self._finished:
            return Searcher.FINISHED
        if not self._as_ray:
            reseed(self._study.sampler, seed)
        with _quiet(), self._storage.for_sampler():
            trial = self._study.ask()
            self._trials.append(trial._trial_id)  # noqa: SLF001  # storages know trials by it
            if self._static is not None:
                found = self._static.suggest(trial)
            else:
                self._run_function(trial)
                found = dict(trial.params)
        if not self._as_ray:
            self._storage.forget_relative(self._trials[number])
        return found

    def _take(self, number: int, values: Values) -> None:
        parameters, distributions = self._parameters(values)
        self._trials.append(self._storage.add_running(parameters, distributions))

    def _again(self, number: int, values: Values, *, preset: bool) -> None:
        sampler = self._study.sampler
        if preset or (type(sampler).__name__ in STATELESS and not self._as_ray):
            self._take(number, values)
            return
        if not self._as_ray:
            reseed(sampler, self._seed_of(number))
        with _quiet():
            trial = self._study.ask()
            self._trials.append(trial._trial_id)  # noqa: SLF001
            _ = trial.relative_params  # what moves the sampler on
            if self._as_ray and self._static is not None:
                self._static.suggest(trial)  # moves the generator on
            elif self._as_ray:
                self._run_function(trial)
            parameters, distributions = self._parameters(values)
            for name, parameter in parameters.items():
                made = distributions[name]
                self._storage.set_trial_param(self._trials[number], name, made.to_internal_repr(parameter), made)

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        from optuna.trial import TrialState  # type: ignore[import-not-found, unused-ignore]

        trial_id = self._trials[number]
        self._storage.reopen(trial_id)
        for name, value in zip(
            (*self._constraint_names, *(each.name for each in self._thresholds)), ending.constraints, strict=False
        ):
            self._storage.set_constraint(trial_id, name, value)
        state, scores = TrialState.FAIL, None
        if ending.status == "complete" or (self._as_ray and ending.status == "stopped" and ending.scores is not None):
            state, scores = TrialState.COMPLETE, ending.scores
        elif ending.status == "stopped" and ending.scores is not None:
            state = TrialState.PRUNED
            if len(ending.scores) == 1:
                self._storage.set_latest(trial_id, ending.step, ending.scores[0])
        with _quiet():
            self._study.tell(number, None if scores is None else list(scores), state)
        if self._copy is not None and not (self._earlier and self._earlier[0] <= number < self._earlier[1]):
            trial = self._storage.get_trial(trial_id)
            self._copy.begin(number, trial)
            self._copy.end(number, trial)

    def _report(self, number: int, scores: tuple[float, ...], step: int) -> None:
        if len(scores) == 1:
            self._storage.set_latest(self._trials[number], step, scores[0])
            if self._copy is not None:
                self._copy.report(number, step, scores[0])

    def _park(self, number: int, scores: tuple[float, ...] | None, step: int) -> None:
        if scores is not None and len(scores) == 1:
            self._storage.set_latest(self._trials[number], step, scores[0])
            if not self._as_ray:
                self._storage.park(self._trials[number], scores[0])

    def _unpark(self, number: int) -> None:
        self._storage.reopen(self._trials[number])

    def _constraints(self, result: dict[str, Any]) -> tuple[float, ...] | None:
        values = [real_number(result.get(name)) for name in self._constraint_names]
        for objective in self._thresholds:
            value = real_number(result.get(objective.name))
            values.append(None if value is None else objective.margin(float(value)))
        if any(v is None or v != v for v in values):
            return None
        return tuple(float(v) for v in values if v is not None)

    def _values_of(self, config: dict[str, Any]) -> Values:
        if self._function is None:
            return super()._values_of(config)
        from optuna.trial import FixedTrial

        trial = FixedTrial(_flattened(config))
        try:
            with _quiet():
                self._run_function(trial)
        except ValueError as error:  # of FixedTrial: a parameter that the function asks for is not in the config
            raise InvalidInputError(f"OptunaSearch: {config!r} is not a point of the space: {error}") from error
        return dict(trial.params)

    def _config(self, number: int, values: Values) -> dict[str, Any]:
        if self._function is None:
            return super()._config(number, values)
        from optuna.trial import FixedTrial

        return unflatten_dict({**values, **self._run_function(FixedTrial(values))})

    def _filled(self, point: dict[str, Any], number: int) -> Values:
        return super()._filled(point, number) if self._function is None else self._values_of(point)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Called by samplers that have tried everything."""
        self._finished = True

    def _part(self, objectives: int) -> Any:
        """Return which trials the sampler is shown; None for all."""
        from trialpod.tune.search.optuna.storage import Part

        if self._model_trials is None or objectives > 1 or not isinstance(self._sampler, (str, dict)):
            return None
        name, arguments = parse_sampler(self._sampler)
        return Part(self._model_trials) if name == "tpe" and arguments.get("gamma") is None else None

    def _parameters(self, values: Values) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._static is not None:
            return self._static.parameters(values)
        from optuna.trial import FixedTrial

        trial = FixedTrial(values)
        with _quiet():
            self._run_function(trial)
        return dict(trial.params), dict(trial.distributions)

    def _run_function(self, trial: Any) -> dict[str, Any]:
        assert self._function is not None
        further = self._function(trial)
        if further is not None and not isinstance(further, dict):
            raise InvalidInputError(
                f"OptunaSearch: the function that defines the space returned {further!r}; return a dict of further "
                "values for the config, or nothing"
            )
        return further or {}


class _NativeSpace:
    """Optuna's distributions by name, as a function that asks a trial for each of them."""

    def __init__(self, distributions: dict[str, Any]) -> None:
        self.distributions = dict(distributions)

    def __call__(self, trial: Any) -> None:
        """Ask for all parameters."""
        for name, made in self.distributions.items():
            kind = type(made).__name__
            if kind == "CategoricalDistribution":
                trial.suggest_categorical(name, made.choices)
            elif kind == "FloatDistribution":
                trial.suggest_float(name, made.low, made.high, step=made.step, log=made.log)
            else:
                trial.suggest_int(name, made.low, made.high, step=made.step, log=made.log)


def _ends_with_process(value: Any) -> bool:
    """Return whether a value is a storage of Optuna's that no other process can open."""
    return type(value).__name__ == "InMemoryStorage"


def _is_native(space: dict[str, Any]) -> bool:
    return bool(space) and all(type(each).__module__.startswith("optuna.") for each in space.values())


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found.update(_flattened(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's remarks to itself: on experimental features, and on values that were checked already."""
    import logging

    log = logging.getLogger("optuna")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
