"""What schedulers that compare trials by a metric have in common: the metric, its direction, time, and checks.

Invariants:

* A value that is not a number counts as not reported; so does a time that is not a finite one.
* Inside, greater is better: values are multiplied by `_sign`.
* Errors name the parameter and the range that it may have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.readable import storable
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.phrases import rank_text, text, time_text, value_text
from trialpod.tune.result_keys import DEFAULT_METRIC
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialScheduler, TrialView

RAY_PENDING_TRIALS = 200
"""So many trials wait at least in Ray, where there are as many; brackets are filled with them."""

MAX_RUNGS = 1000
"""More rungs are a reduction_factor too close to 1; a million of them would fill the operator's memory."""


class MetricScheduler(TrialScheduler):
    """A scheduler that reads a time and a metric from each result; starts trials first come, first served."""

    NAME = "metric"
    """The name of the scheduler in manifests, reasons and messages."""

    def __init__(self, time_attr: str, metric: str | None, mode: str | None, seed: int = 0) -> None:
        """Keep and check what all such schedulers take."""
        check_key("time_attr", time_attr)
        if metric is not None:
            check_key("metric", metric)
        check_mode(mode)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidInputError(f"seed must be a whole number, got {seed!r}", parameter="seed")
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        self._seed = seed
        self._reason: dict[str, Any] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        """Take metric and mode from the experiment; return False when both sides set one of them."""
        if (self.metric and metric) or (self.mode and mode):
            return False
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        if self.metric is None and self.mode:
            self.metric = DEFAULT_METRIC
        return True

    def check_experiment(self, space: Mapping[str, Any], metric: str | None, mode: str | None) -> None:
        """Refuse an experiment that this scheduler cannot decide about, before it starts."""
        mode = self.mode or mode
        self._check_goal(self.metric or metric or (DEFAULT_METRIC if mode else None), mode)

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Check that there is a metric to compare by."""
        self._check_goal(self.metric, self.mode)

    def _check_goal(self, metric: str | None, mode: str | None) -> None:
        if not metric or mode not in ("min", "max"):
            raise InvalidInputError(
                f"the {self.NAME} scheduler compares trials by a metric, but has metric={metric!r} and "
                f"mode={mode!r}; set both in the experiment (TuneConfig, or spec.metric and spec.mode) or "
                "as parameters of the scheduler",
                parameter="metric",
            )

    def reason(self) -> dict[str, Any]:
        """Return why the latest decision other than CONTINUE was made."""
        return dict(self._reason)

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        name, value, time = reason.get("scheduler"), value_text(reason), time_text(reason)
        match reason.get("rule"):
            case "max_t":
                return f"{name}: it reached max_t={text(reason.get('max_t'))}{time}"
            case "rung" if reason.get("cutoff") is not None:
                worse = "below" if reason.get("mode") == "max" else "above"
                cutoff = f"the cutoff {text(reason['cutoff'])} of that rung"
                return f"{name}: {value}{time} is {worse} {cutoff}{rank_text(reason)}"
            case "rung":
                place = f"the rung at {text(reason.get('rung'))}"
                return f"{name}: it reached {place} with {value or 'no value'}{rank_text(reason)}"
            case "time_slice":
                return f"{name}: its time slice was over{time}, and others wait"
        return super().describe_reason(reason)

    @property
    def _sign(self) -> float:
        return -1.0 if self.mode == "min" else 1.0

    def _read(self, result: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """Return the time and the metric of a result; None for what is missing or no number."""
        time, value = real_number(result.get(self.time_attr)), real_number(result.get(self.metric or ""))
        return (time if time is not None and math.isfinite(time) else None), value

    def _explain(self, rule: str, time: float, value: float | None, **evidence: Any) -> None:
        """Remember why a decision was made."""
        self._reason = {
            "scheduler": self.NAME,
            "rule": rule,
            "time_attr": self.time_attr,
            "time": time,
            "metric": self.metric,
            "mode": self.mode,
            "value": None if value is None else encoded(value),
            **evidence,
        }

    def _check_saved(self, saved: Mapping[str, Any], **ours: Any) -> None:
        """Refuse a state that was saved under other parameters."""
        for name, value in ours.items():
            if saved.get(name) not in (value, storable(value)):
                raise InvalidInputError(
                    f"the saved state of the {self.NAME} scheduler has {name} {saved.get(name)!r}, its parameters "
                    f"give {value!r}; continue with the parameters that the experiment was started with"
                )


def check_same_rules(name: str, ray: object, state: Mapping[str, Any]) -> None:
    """Refuse a state that was saved under the other rules."""
    if (ray is not None) != ("ray" in state):
        raise InvalidInputError(
            f"the saved state of the {name} scheduler is one with compatible={'ray' in state}; resume with the "
            "parameters that the experiment was started with"
        )


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number; NaN and infinity are, True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def comparable(value: float) -> float:
    """Return `value`, where greater is better, with NaN as the worst of all."""
    return -math.inf if math.isnan(value) else value


def encoded(value: float) -> float | str:
    """Return a number as JSON data: NaN and infinity have no place in JSON."""
    return value if math.isfinite(value) else repr(value)


def decoded(value: float | str) -> float:
    """Return what `encoded` was given."""
    return float(value) if isinstance(value, str) else value


def check_key(name: str, value: Any) -> None:
    """Refuse what cannot be the key of a result."""
    if not isinstance(value, str) or not value:
        raise InvalidInputError(
            f"{name} must be the name of a reported value, such as 'loss', got {value!r}", parameter=name
        )


def check_mode(mode: Any) -> None:
    """Refuse what is not a direction."""
    if mode not in (None, "min", "max"):
        guess = nearest(mode, ("min", "max")) if isinstance(mode, str) else None
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise InvalidInputError(f"mode must be 'min' or 'max', got {mode!r}{hint}", parameter="mode")


def check_above(name: str, value: Any, lower: float) -> None:
    """Refuse what is not a finite number greater than `lower`."""
    if not is_number(value) or not lower < value < math.inf:
        raise InvalidInputError(f"{name} must be a number greater than {lower:g}, got {value!r}", parameter=name)


def check_at_least(name: str, value: Any, lower: float) -> None:
    """Refuse what is not a finite number of at least `lower`."""
    if not is_number(value) or not lower <= value < math.inf:
        raise InvalidInputError(f"{name} must be a number of at least {lower:g}, got {value!r}", parameter=name)


def check_rungs(lowest: float, max_t: float, reduction_factor: float) -> None:
    """Refuse more than `MAX_RUNGS` rungs from `lowest` to `max_t`, before any is made."""
    if (math.log(max_t) - math.log(lowest)) / math.log(reduction_factor) > MAX_RUNGS:
        raise InvalidInputError(
            f"reduction_factor={reduction_factor!r} makes more than {MAX_RUNGS} rungs up to max_t={max_t!r}: use a "
            "greater one, such as 3",
            parameter="reduction_factor",
        )


def check_between(name: str, value: Any, lower: float, upper: float) -> None:
    """Refuse what is not a number from `lower` to `upper`."""
    if not is_number(value) or not lower <= value <= upper:
        raise InvalidInputError(f"{name} must be a number from {lower:g} to {upper:g}, got {value!r}", parameter=name)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, got {value!r}", parameter=name)
