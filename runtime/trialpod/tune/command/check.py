"""What can be known of a command before its first trial. Nothing of the user's is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.command import CommandSpec
from trialpod.tune.command import template
from trialpod.tune.command.metrics.pattern import MetricPattern
from trialpod.tune.command.template import TemplateError


def problems(
    spec: CommandSpec, parameters: Collection[str] | None, used: Collection[str] = ()
) -> Iterator[TemplateError]:
    """Yield everything that is wrong with a command; arguments as for `template.problems`."""
    yield from template.problems(spec, parameters, used)
    metrics = spec.metrics
    if metrics.pattern:
        try:
            MetricPattern(metrics.pattern)
        except InvalidInputError as error:
            yield TemplateError(str(error), "metrics.pattern")
        if metrics.format != "auto":
            yield TemplateError("goes without format: the pattern says how a line is read", "metrics.pattern")
    if "/" in spec.checkpoints.ready_file:
        yield TemplateError("is the name of a file directly in the checkpoint folder", "checkpoints.readyFile")
    if spec.metrics.prometheus and not spec.metrics.prometheus.startswith("http://"):
        yield TemplateError("must be a URL such as http://127.0.0.1:8000/metrics", "metrics.prometheus")


def parameter_names(space: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of all parameters of a search space; a domain and a grid are one each."""
    found: list[str] = []
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and set(value) != {"grid_search"}:
            found += parameter_names(value, f"{name}.")
        else:
            found.append(name)
    return found
