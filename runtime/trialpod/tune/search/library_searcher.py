"""What all searchers have in common that get their suggestions from an optimiser of another library.

The state is the log of suggestions and results, in order; an optimiser is built again from it. That needs no
pickles of the library's objects, works across its versions, and gives the same suggestions afterwards, because every
suggestion has random numbers of its own: seeded by the searcher's seed and the suggestion's number.

Entries of the log, each a list: ``["ask", trial_id, values]``, whose id is "" in a later experiment,
``["end", number, status, scores, step, constraints]``, ``["pause", number, scores, step]``, ``["resume", number]``,
and ``["add", values, status, scores, step]`` for a point that was evaluated elsewhere. Points are numbered in the
order of "ask" and "add".
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trialpod.errors import InvalidInputError, NotReadyError
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.goal import not_known_yet
from trialpod.tune.search.library import require_all
from trialpod.tune.search.searcher import Metric, Mode, Searcher
from trialpod.tune.search.spaces.flat_space import FlatSpace, Values
from trialpod.tune.search.spaces.library_spaces import read_library_space
from trialpod.tune.search.spaces.native_spaces import original_space
from trialpod.tune.search.spaces.variants import has_variables, same_space
from trialpod.tune.search.warm_start import THE_RESULTS, Row, add_rows, read_experiment, rows_of, usable_rows

logger = logging.getLogger(__name__)

Status = Literal["complete", "stopped", "error"]

_SEED_BITS = 32


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial ended.

    Attributes:
        status: "complete"; "stopped" before its end; "error" also when it did not report a usable number.
        scores: the last values of the metrics, as reported; None without any.
        step: the training iteration of these.
        constraints: the last values of the constraints, which are met up to 0.
    """

    status: Status
    scores: tuple[float, ...] | None = None
    step: int = 0
    constraints: tuple[float, ...] = ()


class LibrarySearcher(Searcher):
    """Base of the adapters. Subclasses implement `_open`, `_ask`, `_take` and `_tell`.

    Args:
        space: the search space, when the experiment has none.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first; parameters that one leaves out are drawn at random.
        evaluated_rewards: the metric of each of these points, when it is known: then none of them is tried.
        seed: None takes the experiment's.
        warm_start: the directory or URI of an earlier experiment to learn from.
        max_concurrent: how many trials may be unfinished at a time; 0 and None: no limit of its own.

    Raises:
        InvalidInputError: an argument cannot be used, or the library is not installed.
    """

    _log: list[list[Any]]
    _values: list[Values]
    _numbers: dict[str, int]
    _unfinished: set[int]
    _paused: set[int]
    _latest: dict[int, tuple[tuple[float, ...], int]]
    _early: list[list[Any]]  # points that were added before the space was known
    _early_rows: list[tuple[list[Row], Any, str]]  # and trials of earlier experiments

    LIBRARY: ClassVar[tuple[tuple[str, str], ...]] = ()
    """What is imported, and what to install for it: (module, requirement)."""

    NORMAL: ClassVar[bool] = False
    """It can search dimensions without bounds."""

    SEVERAL_METRICS: ClassVar[bool] = False

    COUNTS_PAUSED: ClassVar[bool] = True
    """Whether paused trials count towards `max_concurrent`."""

    def __init__(
        self,
        space: Any = None,
        metric: Metric = None,
        mode: Mode = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        evaluated_rewards: list[Any] | None = None,
        seed: int | None = None,
        warm_start: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        name = type(self).__name__
        require_all(self.LIBRARY, name)
        super().__init__(metric, mode)
        space = read_library_space(name, original_space(space))
        if isinstance(metric, (list, tuple)) and not self.SEVERAL_METRICS:
            raise InvalidInputError(
                f"{name} optimises one metric, got {metric!r}; OptunaSearch takes several", parameter="metric"
            )
        if space is not None and not isinstance(space, dict) and not callable(space):
            raise InvalidInputError(
                f"{name}: space must be a dict of parameters, got {type(space).__name__}", parameter="space"
            )
        self._points = checked_points(name, points_to_evaluate, evaluated_rewards)
        self._rewards = evaluated_rewards
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidInputError(f"{name}: seed must be a whole number, got {seed!r}", parameter="seed")
        limit = 0 if max_concurrent is None else max_concurrent
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidInputError(
                f"{name}: max_concurrent must be 0 (no limit) or more, got {max_concurrent!r}",
                parameter="max_concurrent",
            )
        self._max_concurrent = limit
        self._seed = seed
        self._warm_start = warm_start
        self._lessons: list[list[Any]] | None = None  # of earlier experiments, when they were read before
        self._given_space = space
        self._space: FlatSpace | None = None
        self._clear()

    # -- what a subclass implements -----------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the optimiser for `self.flat`."""
        raise NotImplementedError

    def _ask(self, number: int, seed: int) -> Values | str | None:
        """Return the point of suggestion `number`, None for none now, or FINISHED."""
        raise NotImplementedError

    def _take(self, number: int, values: Values) -> None:
        """Note point `number`, which did not come from `_ask`."""
        raise NotImplementedError

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        """Learn how point `number` ended; after an error or a stop this may be called again."""
        raise NotImplementedError

    def _report(self, number: int, scores: tuple[float, ...], step: int) -> None:
        """Learn an intermediate value."""

    def _park(self, number: int, scores: tuple[float, ...] | None, step: int) -> None:
        """Learn that a point was paused."""

    def _unpark(self, number: int) -> None:
        """Learn that a paused point continues."""

    # -- Searcher ---------------------------------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric, space and seed from the experiment."""
        metric, mode = not_known_yet(self, metric, mode)
        several: Any = metric
        if isinstance(several, (list, tuple)) and not self.SEVERAL_METRICS:
            raise InvalidInputError(
                f"{type(self).__name__} optimises one metric, and the experiment has {len(several)}: "
                f"{', '.join(several)}. Take the search optuna or random, or metric and mode in place of metrics",
                parameter="metrics",
            )
        if self._given_space is not None and has_variables(config) and not same_space(config, self._given_space):
            return False
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        if self._seed is None:
            self._seed = spec.get("seed")
        if self._given_space is None:
            self._given_space = config
        self._forget_trials()
        self._ready()
        return True

    @property
    def flat(self) -> FlatSpace:
        """The search space."""
        assert self._space is not None
        return self._space

    @property
    def seed(self) -> int:
        """The seed that all random numbers derive from."""
        assert self._seed is not None
        return self._seed

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of a new trial."""
        self._start()
        self._check_new(trial_id)
        counted = self._unfinished if self.COUNTS_PAUSED else self._unfinished - self._paused
        if self._max_concurrent and len(counted) >= self._max_concurrent:
            return None
        number = len(self._values)
        preset = self._preset()
        if preset is not None:
            values = self._filled(preset, number)
            self._take(number, values)
        else:
            found = self._ask(number, self._seed_of(number))
            if not isinstance(found, dict):
                return found
            values = found
        self._record_ask(trial_id, values)
        return self._config(number, values)

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over an earlier suggestion without computing it, where the library can do without."""
        self._start()
        self._check_new(trial_id)
        number, preset, values = len(self._values), self._preset(), self._values_of(config)
        if self._space is None or self._differed or not self.flat.is_ambiguous(config):
            self._again(number, values, preset=preset is not None)
        elif preset is not None:
            filled = self._filled(preset, number)
            values = filled if self._agrees(number, filled, values) else values
            self._again(number, values, preset=True)
        else:  # which point it was, only the library can say
            again = self._ask(number, self._seed_of(number))
            if isinstance(again, dict) and self._agrees(number, again, values):
                values = again
            else:
                self._differed = True
                self._replayed = self._opened = False  # it is built again without what it has just suggested
        self._record_ask(trial_id, values)

    def _agrees(self, number: int, again: Values, values: Values) -> bool:
        """Return whether a point gives a config whose first point is `values`."""
        return self._values_of(self._config(number, again)) == values

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn an intermediate value."""
        number = self._known(trial_id)
        if number is None:
            return
        scores = self._scores(result)
        if scores is not None and all(map(math.isfinite, scores)):
            self._latest[number] = (scores, _step(result))
            self._report(number, scores, _step(result))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn how a trial ended; one without a finite number of the metric counts as failed."""
        self._end(trial_id, "error" if error else "complete", result)

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Learn that a trial was given up."""
        self._end(trial_id, "stopped", result)

    def on_pause(self, trial_id: str) -> None:
        """Learn that a trial was paused."""
        number = self._known(trial_id)
        if number is not None:
            scores, step = self._latest.get(number, (None, 0))
            self._log.append(["pause", number, None if scores is None else list(scores), step])
            self._paused.add(number)
            self._park(number, scores, step)

    def on_unpause(self, trial_id: str) -> None:
        """Learn that a paused trial continues."""
        number = self._known(trial_id)
        if number is not None:
            self._log.append(["resume", number])
            self._paused.discard(number)
            self._unpark(number)

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: Any,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a config that was evaluated elsewhere; kept until the space is known."""
        step = len(intermediate_values or ())
        if not self._opened and not self._can_start:
            self._early.append([parameters, value, error, pruned, step])
            return
        self._ready()
        self._add(parameters, value, error, pruned, step)

    def add_evaluated_trials(self, trials: Any, metric: str | None = None) -> int:
        """Learn from the results of an experiment; see `Searcher`.

        Before the experiment has set the space, they are kept until the first suggestion; then the number of those
        that have the metric is returned.
        """
        return self._add_rows(rows_of(trials), metric, THE_RESULTS)

    def add_evaluated_experiment(self, place: str | os.PathLike[str], metric: str | None = None) -> int:
        """Learn from an earlier experiment, as `add_evaluated_trials` does from results; see `Searcher`."""
        return self._add_rows(read_experiment(place, self.open_earlier), metric, os.fspath(place))

    def _add_rows(self, rows: list[Row], metric: Any, where: str) -> int:
        if self._opened or (self._can_start and self._seed is not None):
            return add_rows(self, rows, metric, where)
        self._early_rows.append((rows, metric, where))
        known = metric or self._metric
        return len(usable_rows(rows, known) if known else rows)

    @property
    def reads_ahead(self) -> bool:
        """Whether `read_earlier` has something to read without a place."""
        return self._warm_start is not None

    def read_earlier(self, place: str | os.PathLike[str] | None = None) -> tuple[list[list[Any]], int]:
        """Return what an earlier experiment would add to the log, and of how many trials that is; learn nothing.

        Given to `take_earlier` at every start of this experiment, the earlier one is read once only: it may change,
        or be deleted.

        Args:
            place: what `add_evaluated_experiment` takes; None is `warm_start`.

        Raises:
            InvalidInputError: there is no experiment, or nothing in it can be used here.
            StorageError: it cannot be read.
        """
        place = self._warm_start if place is None else place
        if place is None:
            return [], 0
        reader = copy.deepcopy(self)
        return reader.taught_by(place)

    def taught_by(self, place: str | os.PathLike[str]) -> tuple[list[list[Any]], int]:
        """Learn from an earlier experiment; return what that added to the log, and of how many trials it is."""
        self._ready()
        before = len(self._log)
        count = self.add_evaluated_experiment(place)
        return self._log[before:], count

    def take_earlier(self, lessons: list[list[Any]]) -> None:
        """Begin with what `read_earlier` returned, in place of reading `warm_start`."""
        self._lessons = [list(entry) for entry in lessons]

    def get_state(self) -> dict[str, Any]:
        """Return the log, and the latest values of unfinished trials."""
        return {
            "version": 1,
            "seed": self._seed,
            "log": [list(entry) for entry in self._log],
            "latest": [[number, list(scores), step] for number, (scores, step) in self._latest.items()],
            "presets": self._presets_used,
            "warm": self._warmed,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called; the optimiser is built when it is needed."""
        early, early_rows = self._early, self._early_rows
        self._clear()
        self._seed = state["seed"]
        self._log = [list(entry) for entry in state["log"]]
        self._presets_used = state["presets"]
        self._warmed = state["warm"]
        self._early, self._early_rows = ([], []) if self._warmed else (early, early_rows)
        self._latest = {number: (tuple(scores), step) for number, scores, step in state["latest"]}
        self._replayed = False
        self._read_log()

    def __getstate__(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            key: value for key, value in self.__dict__.items() if key not in ("_space", *self._OBJECTS)
        }
        saved["_replayed"] = saved["_opened"] = False
        return saved

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved)
        self._space = None
        for name in self._OBJECTS:
            setattr(self, name, None)

    _OBJECTS: ClassVar[tuple[str, ...]] = ()
    """Attributes with the library's objects, which are not pickled but built again from the log."""

    def _replay_other(self, entry: list[Any]) -> None:
        """Learn again from an entry that only the subclass puts into the log."""
        raise InvalidInputError(
            f"the log of {type(self).__name__} has an entry that it does not know: {entry!r:.100}"
        )

    # -- for subclasses ---------------------------------------------------------------------------------------------

    def _again(self, number: int, values: Values, *, preset: bool) -> None:
        """Note a point that this searcher itself suggested earlier; `preset` tells that the user gave it."""
        self._take(number, values)

    def _loss(self, ending: Ending) -> float | None:
        """Return what to minimise; None when there is no number."""
        if ending.scores is None or ending.status == "error":
            return None
        return -ending.scores[0] if self._mode == "max" else ending.scores[0]

    def _constraints(self, result: dict[str, Any]) -> tuple[float, ...] | None:
        """Return the values of the constraints in a result; None when one is missing."""
        return ()

    def _seed_of(self, number: int | str) -> int:
        digest = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        return int.from_bytes(digest[: _SEED_BITS // 8], "big")

    def _prepare_space(self, space: Any) -> FlatSpace | None:
        return FlatSpace(space, type(self).__name__, normal=self.NORMAL)

    def _values_of(self, config: dict[str, Any]) -> Values:
        return self.flat.encode(config)

    def _config(self, number: int, values: Values) -> dict[str, Any]:
        return self.flat.build(values, random.Random(f"{self.seed}/{number}/functions"))[0]

    def _filled(self, point: dict[str, Any], number: int) -> Values:
        """Return a point with what it leaves out drawn at random."""
        rng = random.Random(f"{self.seed}/{number}/point")
        drawn = {dimension.name: dimension.draw(rng) for dimension in self.flat.dimensions}
        return self.flat.canonical({**drawn, **self.flat.encode(point, partial=True)})

    # -- inside -----------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._log = []
        self._values = []
        self._numbers = {}
        self._unfinished = set()
        self._paused = set()
        self._latest = {}
        self._early = []
        self._early_rows = []
        self._presets_used = 0
        self._warmed = False
        self._replayed = True  # the optimiser knows all of the log
        self._opened = False  # the optimiser is there
        self._space = None

    def _forget_trials(self) -> None:
        """Forget which trials an earlier experiment had; what was learned from them stays."""
        self._numbers, self._unfinished, self._paused = {}, set(), set()
        for entry in self._log:
            if entry[0] == "ask":
                entry[1] = ""

    @property
    def _can_start(self) -> bool:
        return self._given_space is not None and self._metric is not None and self._mode is not None

    def _ready(self) -> None:
        if self._opened:
            return
        name = type(self).__name__
        if not self._metric or not self._mode:
            raise NotReadyError(
                f"{name} needs to know what to optimise: set metric and mode (spec.metric and spec.mode in a "
                "manifest, TuneConfig(metric=..., mode=...) in a script)"
            )
        if self._given_space is None:
            raise NotReadyError(f"{name} has no search space: give it one, or give the experiment one")
        if self._seed is None:
            self._seed = random.SystemRandom().getrandbits(_SEED_BITS)
        self._space = self._prepare_space(self._given_space)
        if self._space is not None:
            for index, point in enumerate(self._points):
                self._check_point(index, point)
        self._opened = True
        self._open()
        if not self._replayed:
            self._replay()

    def _check_point(self, index: int, point: dict[str, Any]) -> None:
        where = f"points_to_evaluate[{index}]"
        self.flat.check_names(point, where)
        try:
            self.flat.encode(point, partial=True)
        except InvalidInputError as error:
            raise InvalidInputError(f"{where} sets {error}", parameter="points_to_evaluate") from error

    def _start(self) -> None:
        """Get ready for a suggestion; what was evaluated elsewhere is read now, not when a manifest is checked."""
        self._ready()
        if self._warmed:
            return
        self._warmed = True
        if self._rewards is not None:
            for point, reward in zip(self._points, self._rewards, strict=True):
                self._add(point, reward, False, False, 0)
            self._presets_used = len(self._points)
        for early in self._early:
            self._add(*early)
        for rows, metric, where in self._early_rows:
            add_rows(self, rows, metric, where)
        self._early, self._early_rows = [], []
        if self._lessons is not None:
            for lesson in self._lessons:
                self._log.append(lesson)
                self._learn_again(lesson)
        elif self._warm_start is not None:
            self.add_evaluated_experiment(self._warm_start)

    def _learn_again(self, lesson: list[Any]) -> None:
        match lesson:
            case ["add", values, status, scores, step]:
                number = len(self._values)
                self._values.append(values)
                self._take(number, values)
                self._tell(number, values, Ending(status, _pair(scores), step))
            case _:
                self._replay_other(lesson)

    def _preset(self) -> dict[str, Any] | None:
        return self._points[self._presets_used] if self._presets_used < len(self._points) else None

    def _known(self, trial_id: str) -> int | None:
        """Return the number of a trial; the optimiser is there then, also after `set_state`."""
        number = self._numbers.get(trial_id)
        if number is not None:
            self._ready()
        return number

    def _check_new(self, trial_id: str) -> None:
        if trial_id in self._numbers:
            raise InvalidInputError(f"trial {trial_id} has a suggestion already")

    def _record_ask(self, trial_id: str, values: Values) -> None:
        self._presets_used += self._presets_used < len(self._points)
        self._numbers[trial_id] = len(self._values)
        self._unfinished.add(len(self._values))
        self._values.append(values)
        self._log.append(["ask", trial_id, values])

    def _add(self, parameters: dict[str, Any], value: Any, error: bool, pruned: bool, step: int) -> None:
        values = self._values_of(parameters)
        scores = _numbers(value)
        status: Status = "stopped" if pruned else "complete"
        wanted = len(self._metric) if isinstance(self._metric, (list, tuple)) else 1
        if not error and (scores is None or len(scores) != wanted):
            raise InvalidInputError(f"{type(self).__name__}: {value!r} is not the value of {self._metric!r}")
        if error or scores is None or not all(map(math.isfinite, scores)):
            status, scores = "error", None
        number = len(self._values)
        self._values.append(values)
        self._log.append(["add", values, status, None if scores is None else list(scores), step])
        self._take(number, values)
        self._tell(number, values, Ending(status, scores, step))

    def _end(self, trial_id: str, status: Status, result: dict[str, Any] | None) -> None:
        number = self._known(trial_id)
        if number is None:
            return
        scores = None if result is None else self._scores(result)
        step = 0 if result is None else _step(result)
        constraints = () if result is None or status == "error" else self._constraints(result)
        usable = scores is not None and all(map(math.isfinite, scores)) and constraints is not None
        if status == "stopped" and not usable and number in self._latest and constraints is not None:
            (scores, step), usable = self._latest[number], True
        if not usable or status == "error":
            status, scores, constraints = "error", None, ()
        self._latest.pop(number, None)
        self._unfinished.discard(number)
        self._paused.discard(number)
        ending = Ending(status, scores, step, constraints or ())
        self._log.append(
            ["end", number, status, None if scores is None else list(scores), step, list(ending.constraints)]
        )
        self._tell(number, self._values[number], ending)

    def _scores(self, result: dict[str, Any]) -> tuple[float, ...] | None:
        names = self._metric if isinstance(self._metric, (list, tuple)) else [self._metric]
        return _numbers([result.get(name) for name in names if name is not None])

    def _read_log(self) -> None:
        for entry in self._log:
            if entry[0] == "ask":
                if entry[1]:
                    self._numbers[entry[1]] = len(self._values)
                    self._unfinished.add(len(self._values))
                self._values.append(entry[2])
            elif entry[0] == "add":
                self._values.append(entry[1])
            elif entry[0] == "end":
                self._unfinished.discard(entry[1])
                self._paused.discard(entry[1])
            elif entry[0] == "pause":
                self._paused.add(entry[1])
            elif entry[0] == "resume":
                self._paused.discard(entry[1])

    def _replay(self) -> None:
        self._replayed = True
        number = preset = 0
        first_preset = len(self._points) if self._rewards is not None else 0
        for entry in self._log:
            match entry:
                case ["ask", _, values]:
                    self._again(number, values, preset=first_preset + preset < len(self._points))
                    preset += 1
                    number += 1
                case ["add", values, status, scores, step]:
                    self._take(number, values)
                    self._tell(number, values, Ending(status, _pair(scores), step))
                    number += 1
                case ["end", index, status, scores, step, constraints]:
                    ending = Ending(status, _pair(scores), step, tuple(constraints))
                    self._tell(index, self._values[index], ending)
                case ["pause", index, scores, step]:
                    self._park(index, _pair(scores), step)
                case ["resume", index]:
                    self._unpark(index)
                case _:
                    self._replay_other(entry)
        for index, (latest, step) in self._latest.items():
            self._report(index, latest, step)


def checked_points(user: str, points: Any, rewards: Any) -> list[dict[str, Any]]:
    """Return points_to_evaluate as a list."""
    if points is not None and (not isinstance(points, (list, tuple)) or not all(isinstance(p, dict) for p in points)):
        raise InvalidInputError(
            f"{user}: points_to_evaluate must be a list of dicts, one for each config to try first",
            parameter="points_to_evaluate",
        )
    if rewards is not None and (not isinstance(rewards, (list, tuple)) or len(rewards) != len(points or [])):
        raise InvalidInputError(
            f"{user}: evaluated_rewards must have one value for each of points_to_evaluate ({len(points or [])}), "
            f"got {rewards!r}",
            parameter="evaluated_rewards",
        )
    return list(points or [])


def _pair(scores: list[float] | None) -> tuple[float, ...] | None:
    return None if scores is None else tuple(scores)


def _numbers(value: Any) -> tuple[float, ...] | None:
    found = [real_number(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    return None if None in found else tuple(float(item) for item in found if item is not None)


def _step(result: dict[str, Any]) -> int:
    step = result.get("training_iteration")
    return step if type(step) is int else 0
