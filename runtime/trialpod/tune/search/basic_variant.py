"""Random search and grid search: every grid point, `num_samples` times, with fresh draws.

Suggestion `i` is a function of the seed, the space and `i` alone: each has a random generator of its own, seeded with
the experiment's seed and the numbers of its sample and grid point. So the state is little more than a counter, a
restart costs nothing, and a longer run starts with exactly the trials of a shorter one.

A ``random_state`` has all draws come from one generator instead, as in Ray (`VariantStream`).
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.readable import has_no_text, text_of
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.sample import Categorical, Domain, equal
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.search.spaces.numpy_draws import NumpyDraws, generator_of, is_state_text, script_seeded_numpy
from trialpod.tune.search.spaces.parameter_order import in_order
from trialpod.tune.search.spaces.variant_stream import VariantStream, has_domain, has_drawn_grid
from trialpod.tune.search.spaces.variants import Path, Variant, VariantSpace, grid_values, is_grid, path_text

logger = logging.getLogger(__name__)

INFINITE = -1
"""As `num_samples`: continue forever."""


@algorithm("variant_generator", "random", "grid")
class BasicVariantGenerator(SearchAlgorithm):
    """Suggests grid points and random draws; the default search algorithm.

    A space without variables gives `num_samples` trials with the same config, an empty one with the config ``{}``:
    repeating a training is a use of its own.
    """

    ABOUT = ("nothing", "a first look; grids")
    learns = False

    instant = True
    """A suggestion takes microseconds."""

    def __init__(
        self,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
        *,
        seed: int | None = None,
        order: Sequence[str] = (),
    ) -> None:
        """Make a generator; `configure` must follow before the first suggestion.

        Args:
            points_to_evaluate: configs to try first, in place of the first samples. A point may leave parameters
                out; they are drawn, and their grids searched. More points than samples are all tried.
            max_concurrent: suggest nothing while this many trials are unfinished; 0 means unlimited.
            constant_grid_search: draw once per sample and keep the values over all its grid points.
            random_state: a seed, or a generator of NumPy: all draws come from it, in Ray's order, so that they are
                Ray's. None is NumPy's global generator when the script has seeded it (``numpy.random.seed``). Of a
                script whose trials run in a cluster this generator travels as a text.
            seed: of draws that do not depend on each other: a longer run begins with those of a shorter one, and no
                NumPy is needed. None takes the experiment's.
            order: names of parameters in the order in which a script has them ("lr", "model/depth"), where what
                brought the search space here does not keep it.

        Raises:
            InvalidInputError: an argument cannot be used.
        """
        if points_to_evaluate is not None and (
            not isinstance(points_to_evaluate, (list, tuple))
            or not all(isinstance(point, dict) for point in points_to_evaluate)
        ):
            raise InvalidInputError(
                "points_to_evaluate must be a list of dicts, one for each config to try first",
                parameter="points_to_evaluate",
            )
        if under_ray() and isinstance(max_concurrent, int):
            max_concurrent = max(max_concurrent, 0)
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 0:
            raise InvalidInputError(
                f"max_concurrent must be 0 (no limit) or more, got {max_concurrent!r}", parameter="max_concurrent"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidInputError(f"seed must be a whole number, got {seed!r}", parameter="seed")
        if seed is not None and random_state is not None:
            raise InvalidInputError("give a seed or a random_state, not both", parameter="seed")
        self._random_state = random_state
        self._draws = None if random_state is None else generator_of(random_state)
        self._follows_numpy = seed is None and random_state is None
        self._has_seed = seed is not None or isinstance(random_state, int) or is_state_text(random_state)
        if seed is not None:
            self._seed = seed
        elif isinstance(random_state, int):
            self._seed = int(random_state)
        elif is_state_text(random_state):
            self._seed = int.from_bytes(hashlib.sha256(random_state.encode()).digest()[:8], "big")
        else:
            self._seed = random.SystemRandom().getrandbits(64)
        self._order = list(order)
        self._stream: VariantStream | None = None
        self.max_concurrent = max_concurrent
        self._points = list(points_to_evaluate or [])
        self._constant_grid_search = bool(constant_grid_search)
        self._space: VariantSpace | None = None
        self._point_spaces: list[VariantSpace] = []
        self._point_ends: list[int] = []  # number of suggestions up to and with each point
        self._num_samples = 1
        self._raw_spaces: tuple[list[dict[str, Any]], dict[str, Any]] = ([], {})
        self._id_prefix = ""
        self._next = 0
        self._live: dict[str, None] = {}
        self._constants: tuple[int, dict[Path, Any]] | None = None

    def configure(
        self,
        space: dict[str, Any],
        num_samples: int = 1,
        id_prefix: str | None = None,
        *,
        seed: int | None = None,
        chosen_seed: bool = True,
    ) -> None:
        """Set what to search; called once, before the first suggestion.

        Args:
            space: the search space with its domains and grids.
            num_samples: how often to go through the grid; -1 continues forever.
            id_prefix: first part of the trial ids; None takes five hex digits from the seed.
            seed: the experiment's, where the generator was made without one; None takes one from the operating system
                (it is part of the state).
            chosen_seed: the user chose that seed: then NumPy's global generator is not drawn from.

        Raises:
            InvalidInputError: the space, a point of `points_to_evaluate` or `num_samples` cannot be used.
        """
        if seed is not None and not self._has_seed:
            self._seed = seed
        if self._order:
            space = in_order(space, self._order)
        self._space = VariantSpace(space)
        overlaid = [_overlaid(space, point, (), number) for number, point in enumerate(self._points)]
        self._point_spaces = [VariantSpace(each) for each in overlaid]
        self._raw_spaces = (overlaid, space)
        self._point_ends = list(accumulate(point.grid_count for point in self._point_spaces))
        self._num_samples = checked_samples(num_samples)
        if id_prefix is None:
            id_prefix = hashlib.sha256(f"trial ids {self._seed}".encode()).hexdigest()[:5]
        self._id_prefix = id_prefix
        self._next, self._live, self._constants = 0, {}, None  # of an earlier experiment
        draws = self._draws
        follows_numpy = self._follows_numpy and (seed is None or not chosen_seed)
        if draws is None and follows_numpy and script_seeded_numpy():
            draws = NumpyDraws()
        if not any(map(has_domain, [*overlaid, space])):
            draws = None  # grids alone have the same order in any case
        if draws is None and any(map(has_drawn_grid, [*overlaid, space])):
            draws = random.Random(f"{self._seed}/stream")
        self._stream = None if draws is None else self._stream_of(draws)

    @property
    def state_from_outside(self) -> bool:
        """True when the script's own generator is drawn from, so that its state must be kept from the first on."""
        return self._stream is not None and self._stream.is_global

    @property
    def total(self) -> int | None:
        """The number of trials in all; None when `num_samples` is -1."""
        if self._num_samples == INFINITE:
            return None
        preset = self._point_ends[-1] if self._point_ends else 0
        samples = max(0, self._num_samples - len(self._points))
        if self._stream is not None and self._stream.ended(self._samples):
            return self._next
        return max(preset + samples * self._configured.grid_count, self._next)

    def set_num_samples(self, num_samples: int) -> None:
        """Change how many samples to draw; a finished search continues when there are more."""
        self._num_samples = checked_samples(num_samples)

    @property
    def finished(self) -> bool:
        """True when all samples were suggested."""
        if self._stream is not None:
            return self._stream.ended(self._samples)
        total = self.total
        return total is not None and self._next >= total

    def is_finished(self) -> bool:
        """Return whether no further trial will come; False while it has nothing to search."""
        return self._space is not None and self.finished

    def next_suggestion(self) -> Suggestion | None:
        """Return the next trial; None when all were suggested or `max_concurrent` are unfinished."""
        if self.finished or (self.max_concurrent and len(self._live) >= self.max_concurrent):
            return None
        suggestion = self._suggestion(self._next)
        self._next += 1
        if self.max_concurrent:
            self._live[suggestion.trial_id] = None
        return suggestion

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Make room for another trial."""
        self._live.pop(trial_id, None)

    def get_state(self) -> dict[str, Any]:
        """Return the position, the seed and the unfinished trials (those only with `max_concurrent`)."""
        return {
            "version": 1,
            "seed": self._seed,
            "next": self._next,
            "num_samples": self._num_samples,
            "id_prefix": self._id_prefix,
            "live": list(self._live),
            **({} if self._stream is None else {"stream": self._stream.get_state()}),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called; `configure` must have been called with the same space."""
        self._seed = state["seed"]
        self._next = state["next"]
        self._num_samples = state["num_samples"]
        self._id_prefix = state["id_prefix"]
        self._live = dict.fromkeys(state["live"])
        self._constants = None
        stream = state.get("stream")
        if stream is None:
            self._stream = None  # of a version in which all draws were independent
        else:
            self._stream = self._stream or self._stream_of(random.Random(0))
            self._stream.set_state(stream)

    @property
    def _samples(self) -> int | None:
        return None if self._num_samples == INFINITE else self._num_samples

    def _stream_of(self, draws: random.Random | NumpyDraws) -> VariantStream:
        points, space = self._raw_spaces
        shared = not isinstance(self._random_state, int)
        return VariantStream(points, space, draws, constant=self._constant_grid_search, shared=shared)

    @property
    def _configured(self) -> VariantSpace:
        if self._space is None:
            raise InvalidInputError("call configure(space, num_samples) before asking for suggestions")
        return self._space

    def _suggestion(self, number: int) -> Suggestion:
        variant = self._variant(number) if self._stream is None else self._stream.draw(self._samples)
        assert variant is not None  # not `finished`
        tag = format_tag(variant.resolved)
        return Suggestion(
            trial_id=f"{self._id_prefix}_{number:05d}",
            config=variant.config,
            tag=f"{number}_{tag}" if tag else str(number),
        )

    def _variant(self, number: int) -> Variant:
        sample, grid_index, space = self._locate(number)
        constants = None
        if self._constant_grid_search:
            if self._constants is None or self._constants[0] != sample:
                self._constants = (sample, space.draw_constants(self._rng(sample, "constant")))
            constants = self._constants[1]
        return space.variant(grid_index, self._rng(sample, grid_index), constants)

    def _locate(self, number: int) -> tuple[int, int, VariantSpace]:
        space = self._configured
        if self._point_ends and number < self._point_ends[-1]:
            sample = bisect_right(self._point_ends, number)
            start = self._point_ends[sample - 1] if sample else 0
            return sample, number - start, self._point_spaces[sample]
        start = self._point_ends[-1] if self._point_ends else 0
        sample, grid_index = divmod(number - start, space.grid_count)
        return len(self._points) + sample, grid_index, space

    def _rng(self, sample: int, part: int | str) -> random.Random:
        # A string seeds through SHA-512, so neighbouring numbers give unrelated streams.
        return random.Random(f"{self._seed}/{sample}/{part}")


_MAX_TAG_VALUE = 200
"""Maximum number of characters of one value in a trial's tag, which is in each of its results."""


def format_tag(resolved: dict[Path, Any]) -> str:
    """Return the readable part of the experiment tag: ``layers=2,lr=0.0132`` (the last name of each path)."""
    named = sorted(resolved.items(), key=lambda item: [str(part) for part in item[0]])
    return ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in named)


def _clean(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    # The text of such an object would have its address in memory in it.
    text = text_of(value) if callable(value) or has_no_text(type(value)) else str(value)
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", text[:_MAX_TAG_VALUE]).strip("_")


def checked_samples(num_samples: int) -> int:
    """Return a number of samples; raise InvalidInputError unless it is 1 or more, or -1 for no end."""
    whole = isinstance(num_samples, int) and not isinstance(num_samples, bool)
    if not whole or (num_samples < 1 and num_samples != INFINITE):
        raise InvalidInputError(f"num_samples must be 1 or more, or -1 for no end, got {num_samples!r}")
    return num_samples


def _overlaid(space: Any, point: Any, path: Path, number: int) -> Any:
    """Return `space` with the values of `point` in it."""
    if isinstance(space, dict) and not is_grid(space) and isinstance(point, dict):
        merged = dict(space)
        for key, value in point.items():
            if key not in space:
                guess = nearest(str(key), [str(known) for known in space])
                raise InvalidInputError(
                    f"points_to_evaluate[{number}] sets {path_text((*path, key))}, which is not in the search space."
                    + (f" Did you mean {path_text((*path, guess))}?" if guess else ""),
                    parameter="points_to_evaluate",
                )
            merged[key] = _overlaid(space[key], value, (*path, key), number)
        return merged
    if isinstance(space, (list, tuple)) and isinstance(point, (list, tuple)) and len(space) == len(point):
        merged_items = [
            _overlaid(inner, value, (*path, index), number)
            for index, (inner, value) in enumerate(zip(space, point, strict=True))
        ]
        return tuple(merged_items) if isinstance(space, tuple) else merged_items
    domain = Categorical(grid_values(space)) if is_grid(space) else space
    allowed = domain.is_valid(point) if isinstance(domain, Domain) else equal(domain, point)
    if not allowed:
        logger.warning(
            "points_to_evaluate[%d] sets %s to %r, which is outside of %r; it is tried nevertheless",
            number, path_text(path), point, domain,
        )  # fmt: skip
    return point
