"""Population Based Training: the worst trials copy the best ones and explore from there.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017). Every `perturbation_interval` a
trial is ranked among all live ones. One of the lowest `quantile_fraction` resumes from the newest checkpoint of a
random one of the highest, with that one's config perturbed. With `synch` all trials wait for each other first.

Invariants:

* Between its perturbation times a trial continues, whatever the others do.
* Only a trial with a committed checkpoint is copied; when no top trial has one, nothing happens.
* A perturbed value stays inside its domain (see `pbt_mutations`).
* A trial that is retried keeps its score; its next perturbation is due one interval after its checkpoint.
* Ties count for the trial that was created later, as in Ray; NaN is the worst score, and is never copied.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.as_ray import decides_as_ray
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.phrases import rank_text, text, time_text, value_text
from trialpod.tune.schedulers.metric_scheduler import (
    MetricScheduler,
    check_above,
    check_at_least,
    check_between,
    check_flag,
    encoded,
)
from trialpod.tune.schedulers.pbt_mutations import compiled_mutations, explore, filled, missing_keys, picked
from trialpod.tune.schedulers.pbt_policy import PolicyLog, plain
from trialpod.tune.schedulers.pbt_population import Member, Population
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialView
from trialpod.tune.schedulers.waiting_trials import Waiting, WaitingTrials
from trialpod.tune.search.basic_variant import format_tag

MAX_EXPLOITS_BEFORE_OTHERS = 4
"""So many exploits a trial may make until others, that do not exploit, take their turn."""


@algorithm("pbt")
class PopulationBasedTraining(MetricScheduler):
    """Lets poor trials copy good ones, asynchronously or all at once."""

    ABOUT = ("set onto better ones' checkpoints", "parameters should change while training")

    NAME = "pbt"
    saves_at_horizon = True
    time_slicing = True
    changes_configs = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: dict[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: int = 0,
        *,
        compatible: bool | None = None,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            perturbation_interval: how often a trial is ranked, in units of `time_attr`; greater than 0.
            burn_in_period: no trial is ranked before this, in units of `time_attr`.
            hyperparam_mutations: what each parameter may become; see `pbt_mutations`.
            quantile_fraction: the share of trials that copy, and that are copied; from 0 to 0.5.
            resample_probability: how often a parameter is drawn again rather than perturbed; from 0 to 1.
            perturbation_factors: what a number is multiplied by, one of them at random.
            custom_explore_fn: changes the config further, after the mutations (Python only).
            log_config: whether `policy_log` keeps the history of exploits.
            require_attrs: whether a result without metric or time is an error.
            synch: whether all trials wait for each other before they are ranked.
            seed: for the choice of sources and all exploration.
            compatible: explore as Ray Tune does: a number may leave its domain, one of a ``tune.choice`` is
                multiplied, missing parameters are drawn whatever their names, and a score of NaN is left out; None is
                True in scripts whose ``ray`` is trialpod.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(time_attr, metric, mode, seed)
        self._compatible = decides_as_ray(self, compatible)
        check_above("perturbation_interval", perturbation_interval, 0)
        check_at_least("burn_in_period", burn_in_period, 0)
        check_between("quantile_fraction", quantile_fraction, 0, 0.5)
        check_between("resample_probability", resample_probability, 0, 1)
        if not isinstance(perturbation_factors, (list, tuple)) or not perturbation_factors:
            raise InvalidInputError(
                f"perturbation_factors must be a list of numbers, such as [1.2, 0.8], got {perturbation_factors!r}",
                parameter="perturbation_factors",
            )
        for factor in perturbation_factors:
            check_above("perturbation_factors", factor, 0)
        for name, flag in (("log_config", log_config), ("require_attrs", require_attrs), ("synch", synch)):
            check_flag(name, flag)
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise InvalidInputError(
                f"custom_explore_fn must be a function, got {custom_explore_fn!r}; it can be given from Python only",
                parameter="custom_explore_fn",
            )
        self._mutations = compiled_mutations(hyperparam_mutations or {})
        if not self._mutations and custom_explore_fn is None:
            raise InvalidInputError(
                "hyperparam_mutations must name at least one parameter, such as {'lr': [1e-4, 1e-3, 1e-2]}; "
                "without it nothing would ever be explored",
                parameter="hyperparam_mutations",
            )
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._quantile_fraction = quantile_fraction
        self._resample_probability = resample_probability
        self._factors = tuple(perturbation_factors)
        self._custom_explore_fn = custom_explore_fn
        self._log_config = log_config
        self._require_attrs = require_attrs
        self._synch = synch
        self._next_sync: float = max(perturbation_interval, burn_in_period)
        self._population = Population(skips_nan=self._compatible)
        self._waiting = WaitingTrials(self._turn)
        self._policy = PolicyLog()
        self._draws = 0
        self._copies: dict[str, int] = {}  # how often each exploited since a trial was ranked that did not
        self._num_perturbations = 0

    def check_experiment(self, space: Mapping[str, Any], metric: str | None, mode: str | None) -> None:
        """Refuse also mutated parameters that look like mistyped ones of the search space."""
        super().check_experiment(space, metric, mode)
        self._check_keys(space)

    def _check_keys(self, config: Mapping[str, Any]) -> list[str]:
        """Return which mutated parameters a config lacks."""
        missing = missing_keys(config, self._mutations)
        guess = nearest(missing[0], [key for key in config if key not in self._mutations]) if missing else None
        if guess and not self._compatible:
            raise InvalidInputError(
                f"{self.NAME} mutates {missing[0]!r}, which the search space does not have. Did you mean "
                f"{guess!r}? If not, put {missing[0]!r} into the search space too",
                parameter=("hyperparam_mutations", *missing[0].split("/")),
            )
        return missing

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Take the trial into the population; draw parameters that its config lacks, where that is possible.

        Raises:
            InvalidInputError: there is no metric, or a mutated parameter looks like a mistyped one of the config.
        """
        super().on_trial_add(tune_controller, trial)
        member = self._members.get(trial.trial_id)
        if member is not None:
            self._set_back(member, trial)
            return
        self._population.add(trial.trial_id, trial.tag)
        self._waiting.touch(trial.trial_id)
        config = trial.config
        if missing := self._check_keys(config):
            self._reason = {"scheduler": self.NAME, "rule": "missing", "parameters": ", ".join(missing)}
            tune_controller.set_config(trial, self._filled(config, self._rng()))

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        """Return CONTINUE between perturbation times; then an `Exploit`, PAUSE to let others catch up, or CONTINUE.

        Raises:
            InvalidInputError: metric or time are not in the result and `require_attrs` is on.
        """
        member = self._members.get(trial.trial_id)
        if member is None:
            raise InvalidInputError(
                f"result of trial {trial.trial_id}, which was never added; call on_trial_add first"
            )
        time, value = self._read(result)
        if self._require_attrs:
            self._check_reported(trial, result, time, value)
        if time is None or value is None or time < self._due(member):
            return self.CONTINUE
        score = self._sign * value
        self._change(trial.trial_id, score=score, train_time=time)
        self._take_in(trial, time, score)
        if self._synch:
            return self._at_sync(tune_controller, trial, time, value)
        member.perturbed_at = time
        count = self._quantile()
        if self._population.is_among_lowest(trial.trial_id, count):
            exploit = self._exploit(tune_controller, trial, count, time)
            if exploit is not None:
                self._copies[trial.trial_id] = self._copies.get(trial.trial_id, 0) + 1
                self._waiting.touch(trial.trial_id)
                return exploit
        for copied in self._copies:
            self._waiting.touch(copied)
        self._copies.clear()
        if self._someone_waits(tune_controller):
            self._explain("time_slice", time, value)
            return self.PAUSE
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Take the trial out of the population."""
        if trial.trial_id in self._members:
            self._population.change(trial.trial_id, live=False)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Take the trial out of the population."""
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Take the trial out of the population, unless it is added again."""
        self.on_trial_complete(tune_controller, trial, {})

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the waiting trial that has trained least; with `synch`, of those below the next common time."""
        if self._synch and self._all_at_sync():
            # The last one to be waited for ended in another way than by reaching the common time.
            self._perturb_all(tune_controller, None)
        waiting = self._waiting
        waiting.begin_choice(tune_controller)
        if not self._synch:
            return waiting.first(tune_controller)
        until = self._next_sync
        early = waiting.first(tune_controller, (False,), (False, until))
        return early if early is not None else waiting.first(tune_controller, (True,), (True, until))

    def _turn(self, waiting: Waiting) -> tuple[bool, float, int] | None:
        """Return when a waiting trial takes its turn."""
        trial_id = waiting.trial.trial_id
        member = self._members.get(trial_id)
        if member is None:
            return None
        # An exploit sets a trial back to its source's time. Those that do so again and again must not take their
        # turns before all others each time.
        return self._copies.get(trial_id, 0) >= MAX_EXPLOITS_BEFORE_OTHERS, member.train_time, member.number

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        name, value, time = reason.get("scheduler"), value_text(reason), time_text(reason)
        match reason.get("rule"):
            case "exploit":
                better = f"{reason.get('source_trial')} with {text(reason.get('source_value'))}"
                source = f" (rank {reason['source_rank']})" if "source_rank" in reason else ""
                return f"{name}: {value}{time}{rank_text(reason)}; it follows {better}{source}"
            case "missing":
                return f"{name}: drew what the search space lacks: {reason.get('parameters')}"
            case "synch":
                return f"{name}: it waits until all trials have come to {text(reason.get('waits_until'))}{time}"
        return super().describe_reason(reason)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the trial's next perturbation time."""
        member = self._members.get(trial.trial_id)
        if member is None:
            return [Horizon("training_iteration", EVERY_RESULT)]
        return [Horizon(self.time_attr, float(self._due(member)))]

    def policy_log(self, since: int = 0) -> dict[str, list[str]]:
        """Return the history of exploits as files: their names, relative to the experiment, and their lines.

        Args:
            since: leave out trials that did not change after so many exploits; `num_perturbations` counts them.
        """
        return self._policy.files(since)

    @property
    def num_perturbations(self) -> int:
        """How many exploits there were."""
        return self._num_perturbations

    def debug_string(self) -> str:
        """Return how many exploits there were."""
        return f"{self.NAME}: {self._num_perturbations} exploits"

    def get_state(self) -> dict[str, Any]:
        """Return the population and the history."""
        return {
            "version": 1,
            "metric": self.metric,
            "mode": self.mode,
            "next_sync": self._next_sync,
            "draws": self._draws,
            "copies": dict(self._copies),
            "perturbations": self._num_perturbations,
            "policy": self._policy.get_state(),
            "trials": self._population.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the population and the history."""
        self.metric, self.mode = state["metric"], state["mode"]
        self._next_sync, self._draws = state["next_sync"], state["draws"]
        self._copies = dict(state["copies"])
        self._num_perturbations = state["perturbations"]
        self._policy.set_state(state["policy"])
        self._population = Population(skips_nan=self._compatible)
        self._population.set_state(state["trials"])
        self._waiting = WaitingTrials(self._turn)

    @property
    def _members(self) -> dict[str, Member]:
        return self._population.members

    def _change(self, trial_id: str, *, score: float | None = None, train_time: float) -> None:
        self._population.change(trial_id, score=score, train_time=train_time)
        self._waiting.touch(trial_id)

    def _new_config(
        self, trial: TrialView, source: TrialView, rng: random.Random
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the config to continue with, and what was done to each parameter of the source's."""
        return explore(
            source.config,
            self._mutations,
            self._resample_probability,
            self._factors,
            rng,
            compatible=self._compatible,
        )

    def _filled(self, config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        """Return the config with values for the mutated parameters that it lacks."""
        return filled(config, self._mutations, rng)

    def _take_in(self, trial: TrialView, time: float, score: float) -> None:
        """Learn from a result at a perturbation time."""

    def _rng(self) -> random.Random:
        self._draws += 1
        return random.Random(f"{self.NAME}/{self._seed}/{self._draws}")

    def _due(self, member: Member) -> float:
        """Return when the trial is ranked next."""
        due = max(self._burn_in, member.perturbed_at + self._interval)
        return max(due, self._next_sync) if self._synch else due

    def _set_back(self, member: Member, trial: TrialView) -> None:
        """Take a trial back in that resumes from its newest checkpoint, or from the start."""
        checkpoint = trial.checkpoint
        found = 0.0 if checkpoint is None else real_number(checkpoint.metrics.get(self.time_attr))
        reached = math.inf if found is None or math.isnan(found) else found
        self._population.change(trial.trial_id, live=True, train_time=min(member.train_time, reached))
        self._waiting.touch(trial.trial_id)
        member.perturbed_at = min(member.perturbed_at, reached)

    def _check_reported(self, trial: TrialView, result: dict[str, Any], time: Any, value: Any) -> None:
        for role, name, usable in (("time_attr", self.time_attr, time), ("metric", self.metric or "", value)):
            if usable is None:
                found = f"is {result[name]!r:.60}, not a number" if name in result else "is missing"
                guess = None if name in result else nearest(name, result)
                hint = f" Did you mean {guess!r}?" if guess else ""
                raise InvalidInputError(
                    f"{self.NAME} needs {role} {name!r} in every result, but in one of trial {trial.trial_id} it "
                    f"{found}.{hint} Report it always, or set require_attrs to False to ignore such results"
                )

    def _someone_waits(self, tune_controller: ControllerView) -> bool:
        for _ in tune_controller.pending_trials():
            return True
        return any(True for _ in tune_controller.paused_trials())

    def _quantile(self) -> int:
        """Return how many of the live trials that have a score are the lowest, and as many others the highest."""
        ranked = len(self._population.ranked)
        if ranked <= 1:
            return 0
        count = math.ceil(ranked * self._quantile_fraction)
        return count if count <= ranked / 2 else ranked // 2

    def _score(self, trial_id: str) -> float:
        score = self._members[trial_id].score
        return math.nan if score is None else score

    def _exploit(self, tune_controller: ControllerView, trial: TrialView, count: int, time: float) -> Exploit | None:
        """Return how one of the lowest `count` continues as a variation of one of the highest.

        None when none of these has a checkpoint.
        """
        self._population.refresh(tune_controller)
        sources = self._population.sources(count)
        if not sources:
            return None
        rng = self._rng()
        _, _, chosen = sources[rng.randrange(len(sources))]
        source = tune_controller.get_trial(chosen)
        checkpoint = None if source is None else source.checkpoint
        if source is None or checkpoint is None:
            return None
        config, operations = self._new_config(trial, source, rng)
        if self._custom_explore_fn is not None:
            config = self._custom_explore_fn(config)
            if not isinstance(config, dict):
                raise InvalidInputError(f"custom_explore_fn must return the new config as a dict, got {config!r}")
        ours, theirs = self._members[trial.trial_id], self._members[source.trial_id]
        population = self._population
        self._explain(
            "exploit",
            time,
            self._sign * self._score(trial.trial_id),
            rank=population.rank(trial.trial_id),
            compared=len(population.ranked),
            quantile_fraction=self._quantile_fraction,
            source_trial=source.trial_id,
            source_value=encoded(self._sign * self._score(source.trial_id)),
            source_rank=population.rank(source.trial_id),
            source_checkpoint=checkpoint.name,
            operations=plain(operations),
        )
        if self._log_config:
            iteration = trial.last_result.get("training_iteration", 0)
            line = [ours.tag, theirs.tag, iteration, checkpoint.iteration, source.config, config]
            self._policy.add(trial.trial_id, source.trial_id, plain(line))
        self._num_perturbations += 1
        reached = real_number(checkpoint.metrics.get(self.time_attr))
        if reached is not None and not math.isnan(reached):
            ours.perturbed_at = train_time = reached
        else:
            ours.perturbed_at, train_time = theirs.perturbed_at, theirs.train_time
        self._change(trial.trial_id, train_time=train_time)
        tag = f"{ours.tag}@perturbed[{format_tag(picked(config, self._mutations))}]"
        return Exploit(source.trial_id, config, tag)

    def _at_sync(self, tune_controller: ControllerView, trial: TrialView, time: float, value: float) -> str | Exploit:
        if not self._all_at_sync():
            self._explain("synch", time, value, waits_until=self._next_sync)
            return self.PAUSE
        exploit = self._perturb_all(tune_controller, trial)
        return self.CONTINUE if exploit is None else exploit

    def _all_at_sync(self) -> bool:
        """Return whether some trial is in the population, and all that are have reached the common time."""
        least = self._population.least_time
        return least is not None and least >= self._next_sync

    def _perturb_all(self, tune_controller: ControllerView, current: TrialView | None) -> Exploit | None:
        """Rank all trials, change those at the bottom, and set the next common time."""
        population = self._population
        common, furthest = self._next_sync, population.greatest_time
        count = self._quantile()
        lower = [trial_id for _, _, trial_id in population.ranked[:count]]
        for member in population.live_members():
            member.perturbed_at = common if current is None else self._members[current.trial_id].train_time
        mine: Exploit | None = None
        reason: dict[str, Any] = {}
        for trial_id in lower:
            other = current if current is not None and trial_id == current.trial_id else None
            view = other or tune_controller.get_trial(trial_id)
            if view is None:
                continue
            exploit = self._exploit(tune_controller, view, count, self._members[trial_id].train_time)
            if exploit is None:
                continue
            if other is not None:
                mine, reason = exploit, self._reason
            else:
                tune_controller.exploit_paused(view, exploit, self.reason())
        self._reason = reason or self._reason
        self._next_sync = max(self._next_sync + self._interval, furthest)
        if self._all_at_sync():  # no member would have anything left to run for
            self._next_sync = population.greatest_time + self._interval
        return mine
