"""The rules that the API server itself judges (CEL): what a schema cannot say, as far as it can be said there.

A rule here never refuses what `rules.py` accepts: the API server gives the first answer, the validator the full one.
So search spaces, the parameters of algorithms and most of the pod template are judged by the operator alone.

What an experiment is made of cannot change once it has started, that is, once the operator has set status.startTime.
Before, an experiment that turned out to be invalid can be corrected and applied again. The Trainable can be corrected
until a trial has reported something; a status may be late, so the operator judges that again. The API server compares
free forms (searchSpace, parameters) key by key of the new one, and so does not see that one key took the place of
another; the operator, which compares with what it stored at the start, does.

Expressions use what Kubernetes 1.30 has. `self` is the value that a rule is attached to, `oldSelf` its former state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trialpod_operator.api import duration, quantity
from trialpod_operator.api.inspection import changeable
from trialpod_operator.api.models import (
    DeciderSpec,
    Model,
    StorageSpec,
    TrainableSpec,
    TuneExperiment,
    TuneExperimentSpec,
)
from trialpod_operator.api.trial_models import TuneTrial, TuneTrialSpec

FIXED_STORAGE = ("uri", "endpoint", "scopedCredentials")


@dataclass(frozen=True)
class Rule:
    """One rule: an expression that must be true, what to say when it is not, and the field that is at fault."""

    rule: str
    message: str
    field_path: str | None = None

    def as_schema(self) -> dict[str, Any]:
        """Return it as an entry of x-kubernetes-validations."""
        entry: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry


def of_form(pattern: str, expected: str) -> Rule:
    """Return the rule that a text has a form. The API server shows of a `pattern` the expression alone."""
    return Rule(f"self.matches(r'{pattern}')", f"it must be {expected}")


def _number_or(form: Rule) -> Rule:
    """Return the rule for what may be a whole number, or a text of that form."""
    return Rule(f"type(self) == int || (type(self) == string && {form.rule})", form.message)


DURATION = (
    _number_or(of_form(duration.PATTERN, duration.EXPECTED)),
    Rule(
        "type(self) == int ? self > 0 : (type(self) == string && self.matches('[1-9]'))",
        "a duration is positive; leave the field out for no limit",
    ),
)
QUANTITY = (
    _number_or(
        Rule(
            "isQuantity(self)",
            f'it must be {quantity.EXPECTED}, without a space and without "B"; quote a number with a point: "0.5"',
        )
    ),
    Rule(
        "type(self) == int ? self >= 0 : (type(self) == string && !self.startsWith('-'))",
        "an amount is not negative",
    ),
)
"""Cheap rules: Kubernetes 1.30 takes what is a number or text to be 3 MB long, whatever `maxLength` says, and refuses
a definition whose rules may cost too much for that. So the form of a duration is checked only roughly here."""


def _unchanged(path: str) -> str:
    """Return the expression that the field at `path` ("spec.storage.uri") is as it was; its parents are there."""
    new, old = f"self.{path}", f"oldSelf.{path}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def _fixed_once_started() -> list[Rule]:
    not_started = "!has(oldSelf.status) || !has(oldSelf.status.startTime)"
    advice = "cannot change once the experiment has started; change it back, or start another one under a new name"
    rules = [
        Rule(f"{not_started} || ({_unchanged(f'spec.{name}')})", f"spec.{name} {advice}", f".spec.{name}")
        for name in spec_fields()
        if name not in changeable("any time") | changeable("before results") | {"workers"}
    ]
    workers = "self.spec.workers.replicas == oldSelf.spec.workers.replicas"
    rules.append(
        Rule(
            f"{not_started} || (has(self.spec.workers) == has(oldSelf.spec.workers) && (!has(self.spec.workers) || "
            f"{workers}))",
            f"spec.workers {advice}; resources and startTimeout of the workers may change",
            ".spec.workers",
        )
    )
    # Nothing is known of what an older operator has started: it did not say whether anything was reported.
    nothing_reported = "(has(oldSelf.status.trainableFixed) && !oldSelf.status.trainableFixed)"
    rules += [
        Rule(
            f"{not_started} || {nothing_reported} || ({_unchanged(f'spec.{name}')})",
            f"spec.{name} cannot change once a trial has reported a result or saved a checkpoint; change it back, or "
            "start another experiment under a new name",
            f".spec.{name}",
        )
        for name in sorted(changeable("before results"))
    ]
    rules.append(
        Rule(
            f"{not_started} || has(self.spec.storage) == has(oldSelf.spec.storage)",
            f"spec.storage {advice}",
            ".spec.storage",
        )
    )
    without = "!has(self.spec.storage) || !has(oldSelf.spec.storage)"
    rules += [
        Rule(
            f"{not_started} || {without} || ({_unchanged(f'spec.storage.{name}')})",
            f"spec.storage.{name} {advice}",
            f".spec.storage.{name}",
        )
        for name in FIXED_STORAGE
    ]
    return rules


def spec_fields() -> tuple[str, ...]:
    """Return the names of the fields of a TuneExperiment's spec, as in a manifest."""
    return TuneExperimentSpec.__struct_encode_fields__


_TRAINABLE = [
    Rule(
        "[has(self.entrypoint), has(self.source), has(self.configMapRef), has(self.pickle), has(self.command)]"
        ".exists_one(given, given)",
        "give exactly one of entrypoint, source, configMapRef, pickle and command",
    ),
    Rule(
        "!has(self.attribute) || has(self.source)",
        "attribute goes only with source; an entrypoint names it after its colon",
        ".attribute",
    ),
    Rule(
        "!has(self.command) || self.command.size() > 0", "command is empty; its first item is the program", ".command"
    ),
]
_TRAINABLE += [
    Rule(f"!has(self.{name}) || has(self.command)", f"{name} goes only with command", f".{name}")
    for name in ("env", "resumeArgs", "parametersFile", "parameterEnvPrefix", "workingDir", "gracePeriod")
]

_DECIDER = [
    Rule(
        "has(self.pickle) != (has(self.searchAlgorithm) || has(self.scheduler) || has(self.stoppers))",
        "give either pickle, or some of searchAlgorithm, scheduler and stoppers",
    ),
]

_SPEC = [
    Rule(
        "!has(self.metric) || has(self.mode)",
        "mode is missing: is a large value of the metric good (max) or a small one (min)?",
        ".mode",
    ),
    Rule(
        "!has(self.mode) || has(self.metric) || has(self.scheduler) || has(self.searchAlgorithm)",
        "mode has no effect without metric; name the metric, or remove mode",
        ".mode",
    ),
    Rule(
        "!has(self.numSamples) || self.numSamples != 0",
        "0 samples would run nothing; give 1 or more, or -1 for no limit",
        ".numSamples",
    ),
]

_SPEC += [
    Rule(
        f"!has(self.algorithm) || !has(self.{name})",
        f"algorithm and {name} are both given, and algorithm: auto stands for scheduler and searchAlgorithm; "
        f"remove {name}, or algorithm",
        f".{name}",
    )
    for name in ("scheduler", "searchAlgorithm")
]
_SPEC += [
    Rule(
        f"!has(self.decider) || !has(self.{name}) || !(has(self.decider.pickle) || has(self.decider.{name}))",
        f"{name} is given beside code of spec.decider that decides in its place; remove one of them",
        f".{name}",
    )
    for name in ("scheduler", "searchAlgorithm")
]
_SPEC += [
    Rule(
        f"!has(self.trialResource) || !has(self.{name}){empty}",
        f"trialResource and {name} are both given, and trialResource makes the pods; remove one of them",
        f".{name}",
    )
    for name, empty in (("workers", ""), ("reusePods", " || !self.reusePods"))
]
_SPEC += [
    Rule(
        f"!has(self.metrics) || !has(self.{name})",
        f"metrics and {name} are both given, and metrics stands for metric and mode; remove {name}, or metrics",
        f".{name}",
    )
    for name in ("metric", "mode")
]
_SPEC += [
    Rule(
        "!has(self.metrics) || self.metrics.all(a, self.metrics.exists_one(b, b.name == a.name))",
        "a metric is listed twice; keep one of them",
        ".metrics",
    ),
    Rule(
        "!has(self.repeats) || has(self.metric)",
        "repeats compare configs by a metric; set metric and mode",
        ".repeats",
    ),
    Rule(
        "!has(self.stopWhenNotWorth) || has(self.metric)",
        "stopWhenNotWorth is an improvement of a metric; set metric and mode",
        ".stopWhenNotWorth",
    ),
    Rule(
        "!has(self.stopWhenNotWorth) || self.stopWhenNotWorth > 0.0",
        "a threshold is positive; leave the field out for none",
        ".stopWhenNotWorth",
    ),
    Rule(
        "!has(self.warmStart) || has(self.algorithm) || (has(self.searchAlgorithm) && self.searchAlgorithm.name == "
        "'auto')",
        "warmStart is advice for the search auto; set algorithm: auto",
        ".warmStart",
    ),
    Rule(
        "!has(self.warmStart) || (has(self.warmStart.experiments) && self.warmStart.experiments.size() > 0) != "
        "(has(self.warmStart.auto) && self.warmStart.auto)",
        "give experiments, a list of at least one, or auto: true",
        ".warmStart",
    ),
    Rule(
        "!has(self.algorithm) || has(self.metric)",
        "algorithm: auto compares trials by a metric; set metric and mode",
        ".algorithm",
    ),
]
_SPEC += [
    Rule(
        f"!has(self.{name}) || self.{name} > 0.0",
        "a budget is positive; leave the field out for no limit",
        f".{name}",
    )
    for name in ("maxTrialHours", "maxGpuHours")
]

_STORAGE = [
    Rule(
        "!self.uri.contains('://') || self.uri.startsWith('file://') || self.uri.matches('^[a-z][a-z0-9+.-]*://[^/?#]')",
        "uri must be s3://bucket/prefix, or another installed storage's (or a folder, for runs on one machine)",
        ".uri",
    ),
    Rule(
        "!self.uri.startsWith('s3://') || self.uri.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]([/?]|$)')",
        "a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-'",
        ".uri",
    ),
    Rule(
        "!has(self.endpoint) || self.endpoint.matches('^https?://[^\\\\s/]+(/\\\\S*)?$')",
        "endpoint must be a URL such as http://minio:9000",
        ".endpoint",
    ),
    Rule(
        "!has(self.scopedCredentials) || !has(self.scopedCredentials.stsEndpoint) || "
        "self.scopedCredentials.stsEndpoint.matches('^https?://[^\\\\s/]+/?$')",
        "stsEndpoint must be a URL such as https://sts.eu-west-1.amazonaws.com",
        ".scopedCredentials.stsEndpoint",
    ),
    Rule(
        "!has(self.scopedCredentials) || !has(self.scopedCredentials.roleArn) || "
        "self.scopedCredentials.roleArn.matches('^arn:[-a-z]+:iam::[^:]*:role/.+$')",
        "roleArn must be like arn:aws:iam::123456789012:role/tuning",
        ".scopedCredentials.roleArn",
    ),
    *(
        Rule(
            f"(self.uri.contains('://') && !self.uri.startsWith('file://')) || !{condition}",
            f"{name} goes only with an s3:// uri",
            f".{name}",
        )
        for name, condition in (
            ("endpoint", "has(self.endpoint)"),
            ("credentialsSecret", "has(self.credentialsSecret)"),
            ("scopedCredentials", "has(self.scopedCredentials)"),
            ("createBucket", "(has(self.createBucket) && self.createBucket)"),
        )
    ),
]

_EXPERIMENT = [
    Rule(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$')",
        'metadata.name must be lower-case letters, digits and "-", at most 40 characters, because the names of the '
        "experiment's pods begin with it",
    ),
    *_fixed_once_started(),
]

_TRIAL = [
    *(
        Rule(
            _unchanged(name),
            f"{name} is written once, by the operator; only stop can change",
            f".{name}",
        )
        for name in TuneTrialSpec.__struct_encode_fields__
        if name != "stop"
    ),
    Rule(
        "!oldSelf.stop || self.stop",
        "a stopped trial does not continue; raise numSamples of the experiment for another one",
        ".stop",
    ),
]

RULES: dict[type[Model], list[Rule]] = {
    TuneExperiment: _EXPERIMENT,
    TuneExperimentSpec: _SPEC,
    TrainableSpec: _TRAINABLE,
    DeciderSpec: _DECIDER,
    StorageSpec: _STORAGE,
    TuneTrial: [],
    TuneTrialSpec: _TRIAL,
}
"""The rules of each model, beside those of the formats "duration" and "quantity"."""

RESOURCE_NAMES = Rule(
    r"self.all(name, name.size() <= 253 && "
    r"name.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
    "a key must be the name of a resource such as cpu, memory or nvidia.com/gpu",
)
