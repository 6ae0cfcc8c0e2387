"""Ray Tune's functions that make configs of a search space by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trialpod.tune.search.basic_variant import format_tag
from trialpod.tune.search.sample import grid_search
from trialpod.tune.search.spaces.numpy_draws import NumpyDraws, ReseededDraws, generator_of
from trialpod.tune.search.spaces.variant_stream import VariantStream
from trialpod.tune.search.spaces.variants import Path, RecursiveDependencyError

__all__ = ["RecursiveDependencyError", "format_vars", "generate_variants", "grid_search"]


def generate_variants(
    unresolved_spec: dict[str, Any], constant_grid_search: bool = False, random_state: Any = None
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Yield the variants of a space, each with the values of its variables by path, for scripts that ask as in Ray.

    Args:
        unresolved_spec: the space.
        constant_grid_search: draw once, and keep the values over all grid points.
        random_state: a generator, or a seed with which every single draw begins; None as for `Domain.sample`.
    """
    draws = generator_of(random_state)
    if isinstance(draws, NumpyDraws) and hasattr(random_state, "__index__"):
        draws = ReseededDraws(random_state.__index__())
    stream = VariantStream([], unresolved_spec, draws, constant=constant_grid_search)
    while (variant := stream.draw(1)) is not None:
        yield variant.resolved, variant.config


def format_vars(resolved_vars: dict[Path, Any]) -> str:
    """Return the values of variables as the readable part of an experiment tag."""
    left_out = {("run",), ("env",), ("resources_per_trial",)}
    return format_tag({path: value for path, value in resolved_vars.items() if path not in left_out})
