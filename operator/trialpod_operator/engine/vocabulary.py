"""The words for what a user may change: those of a manifest and its command line, or those of a Python script."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UPPER = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How remedies are written for one kind of user.

    Attributes:
        fail_fast: the option that ends an experiment at its first failure.
        overcommit: how to share out more CPUs than the machine has.
        yaml: whether the user writes YAML.
    """

    fail_fast: str
    overcommit: str
    yaml: bool

    def metric(self, name: str) -> str:
        """Return how to name the metric."""
        return f"set spec.metric: {name} and spec.mode"

    def resource(self, name: str, amount: float) -> str:
        """Return how each trial asks for that much of a resource."""
        return f"--set spec.resources.{name}={amount:g}"

    def field(self, name: str) -> str:
        """Return what a field of the spec, ``maxTrialHours``, is called."""
        return f"spec.{name}"


class _ScriptVocabulary(Vocabulary):
    def metric(self, name: str) -> str:
        return f"pass it: TuneConfig(metric={name!r}, mode='max'), or get_best_result(metric={name!r}, mode='max')"

    def resource(self, name: str, amount: float) -> str:
        return f"tune.with_resources(trainable, {{{name!r}: {amount:g}}})"

    def field(self, name: str) -> str:
        return _UPPER.sub("_", name).lower()


MANIFEST = Vocabulary(fail_fast="failFast", overcommit="--cpus N to overcommit", yaml=True)
SCRIPT = _ScriptVocabulary(
    fail_fast="fail_fast", overcommit="set the variable TRIALPOD_CPUS=N to overcommit", yaml=False
)
