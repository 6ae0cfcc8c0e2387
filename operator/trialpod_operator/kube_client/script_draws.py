"""Random draws of a script that seeds NumPy's global generator: the operator continues where that is.

So a script draws the same values in a cluster as on its own machine, and as in Ray Tune. Only where the generator is
at the start travels, with the order of the parameters, which the API server does not keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.plugins.described import arguments_of
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.spaces.numpy_draws import is_state_text, script_seeded_numpy, text_of_global
from trialpod.tune.search.spaces.parameter_order import order_of
from trialpod.tune.search.spaces.variant_stream import has_domain

Json = dict[str, Any]

MAX_DRAWN = 10_000
_STATE = "random_state"


def draws_from_script(request: ExperimentRequest) -> bool:
    """Return whether what is drawn at random comes from a generator that the script has seeded itself."""
    search = _search_of(request)
    if search is None:
        return False
    given = arguments_of(search) or {}
    seeded = request.seed is not None or any(given.get(name) is not None for name in ("seed", "random_state"))
    return not seeded and not request.algorithm and script_seeded_numpy() and has_domain(request.param_space)


def with_generator(search: Json | None, space: Mapping[str, Any]) -> Json:
    """Return a random search that draws what the script itself would draw now."""
    drawn = {_STATE: text_of_global(), "order": order_of(space)}
    return {"name": "random", "parameters": {**((search or {}).get("parameters") or {}), **drawn}}


def without_generator(spec: Json) -> Json:
    """Return a spec in which a search does not say where the script's generator was: it may have been run again."""
    search = spec.get("searchAlgorithm") or {}
    parameters = dict(search.get("parameters") or {})
    if not is_state_text(parameters.pop(_STATE, None)):
        return spec
    parameters.pop("order", None)
    plain_search = {"name": search["name"], "parameters": parameters} if parameters else None
    return {**spec, "searchAlgorithm": plain_search}


def draw_here_too(request: ExperimentRequest) -> None:
    """Have the script's generator continue after what the operator draws from it, as when trials run here."""
    search = _search_of(request)
    if search is None or request.num_samples < 0:
        return
    copied = BasicVariantGenerator(**(arguments_of(search) or {}))
    copied.configure(request.param_space, request.num_samples)
    for _ in range(min(copied.total or 0, MAX_DRAWN)):
        copied.next_suggestion()


def _search_of(request: ExperimentRequest) -> BasicVariantGenerator | None:
    """Return the random search of a request, whatever is around it; None where another algorithm suggests."""
    search: Any = request.search_alg
    if search is None:
        return BasicVariantGenerator()
    while search is not None and not isinstance(search, BasicVariantGenerator):
        search = getattr(search, "searcher", None)
    return search
