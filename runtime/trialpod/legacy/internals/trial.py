"""`Trial`: one trial that a script makes itself, for a `TrialRunner` or a `RayTrialExecutor`.

Invariant: what it says of results, checkpoints and errors is what was found there; only `status` is also set by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import StopRule
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.outcomes import TrialOutcome
from trialpod.tune.placement_groups import PlacementGroupFactory, Resources, to_resources
from trialpod.tune.registry import resolve_trainable
from trialpod.tune.report_values import StopRules, flatten
from trialpod.tune.resources import resources_of
from trialpod.tune.trial import Trial as TrialView
from trialpod.tune.trial_config import CheckpointConfig

_STATES = ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR")


class Trial(TrialView):
    """One trial.

    Args:
        trainable_name: the name of a registered Trainable.
        config: its parameters.
        trial_id: None makes one.
        local_dir: the experiment's directory.
        evaluated_params: accepted for compatibility; the config says the same.
        experiment_tag: what tells it from the others.
        resources: what it needs, as the first API wrote it.
        placement_group_factory: what it needs; None takes what its Trainable asks for.
        stopping_criterion: metrics and the numbers at which it ends.
        experiment_dir_name: accepted for compatibility, unused.
        sync_config: accepted for compatibility, unused.
        checkpoint_config: which checkpoints are made.
        export_formats: what `RayTrialExecutor.export_trial_if_needed` exports.
        restore_path: a checkpoint to start from.
        trial_name_creator: called with the trial; returns its name.
        trial_dirname_creator: called with the trial; returns the name of its directory.
        log_to_file: accepted for compatibility, unused.
        max_failures: how often it may fail and be retried.
        stub: whether it only stands for a trial whose Trainable is not known here.
        _setup_default_resource: accepted for compatibility, unused.
        older: arguments of older versions, such as ``checkpoint_freq``.

    Raises:
        InvalidInputError: the Trainable is not registered, there is no checkpoint at `restore_path`, or an argument
            cannot be used.
    """

    def __init__(
        self,
        trainable_name: str,
        config: dict[str, Any] | None = None,
        *,
        trial_id: str | None = None,
        local_dir: str | None = None,
        evaluated_params: dict[str, Any] | None = None,
        experiment_tag: str = "",
        resources: Resources | None = None,
        placement_group_factory: PlacementGroupFactory | None = None,
        stopping_criterion: Mapping[str, float] | None = None,
        experiment_dir_name: str | None = None,
        sync_config: Any = None,
        checkpoint_config: CheckpointConfig | None = None,
        export_formats: list[str] | None = None,
        restore_path: str | None = None,
        trial_name_creator: Any = None,
        trial_dirname_creator: Any = None,
        log_to_file: Any = None,
        max_failures: int = 0,
        stub: bool = False,
        _setup_default_resource: bool = True,
        **older: Any,
    ) -> None:
        from trialpod.legacy.run_arguments import checkpoint_path, translated

        if not stub:
            resolve_trainable(trainable_name)
        given = translated("Trial", {"checkpoint_config": checkpoint_config, "storage_path": None}, older)
        checkpoint_config, local_dir = given["checkpoint_config"], given["storage_path"] or local_dir
        made = trial_id or self.generate_id()
        self.outcome = TrialOutcome(
            trial_id=made,
            name=f"{trainable_name}_{made}",
            config=dict(config or {}),
            status="PENDING",
            path="",
            experiment_tag=experiment_tag,
            trainable_name=trainable_name,
        )
        super().__init__(self.outcome)
        self.stub = stub
        self.stopping_criterion = dict(stopping_criterion or {})
        self._checkpoint_config = checkpoint_config or CheckpointConfig()
        self.export_formats = list(export_formats or [])
        self.max_failures = max_failures
        self._location: Any = None
        self.restore_path = checkpoint_path("Trial", restore_path, "restore_path")
        self.trial_name_creator, self.trial_dirname_creator = trial_name_creator, trial_dirname_creator
        self._given = placement_group_factory or resources
        self._checkpoint = Checkpoint(self.restore_path) if self.restore_path else None
        if trial_name_creator is not None:
            self.outcome.name = str(trial_name_creator(self))
        folder = str(trial_dirname_creator(self)) if trial_dirname_creator is not None else self.outcome.name
        self.outcome.path = os.path.join(os.path.abspath(os.path.expanduser(local_dir or "ray_results")), folder)

    @classmethod
    def generate_id(cls) -> str:
        """Return a new id."""
        return os.urandom(4).hex()

    def follow(self, view: TrialView) -> None:
        """Say what is happening to the trial, or what became of it, as `view` does."""
        facts = view._facts  # noqa: SLF001 - the base class's own
        if isinstance(facts, TrialOutcome):
            self.outcome = facts
        self._facts = facts

    def get_trainable_cls(self) -> Any:
        """Return the class Trainable, also of a function; None for a stub."""
        if self.stub:
            return None
        found = resolve_trainable(self.trainable_name)
        if isinstance(found, type):
            return found
        from trialpod.tune.trainable.function_trainable import wrap_function

        return wrap_function(found)

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """What it needs, as one bundle."""
        if self._given is not None:
            plain = to_resources(self._given, "Trial")
        else:
            fixed, ask = resources_of(resolve_trainable(self.trainable_name))
            plain = fixed if ask is None else ask(self.config)
        names = {"cpu": "CPU", "gpu": "GPU"}
        return PlacementGroupFactory([{names.get(name, name): amount for name, amount in plain.items()}])

    def update_resources(self, resources: Mapping[str, Any] | Resources | PlacementGroupFactory) -> None:
        """Change what it needs.

        Raises:
            InvalidInputError: it runs, or these are not resources.
        """
        if self.status == self.RUNNING:
            raise InvalidInputError(f"the resources of trial {self.trial_id} cannot change while it is RUNNING")
        plain = to_resources(resources, "Trial.update_resources")
        self._given = PlacementGroupFactory([plain])

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Its newest checkpoint, or the one set by hand, or None."""
        return self._checkpoint or super().checkpoint

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        """Which checkpoints are made."""
        return self._checkpoint_config

    @property
    def location(self) -> Any:
        """Where it runs: what `set_location` was given, else where its latest result came from."""
        return super().location if self._location is None else self._location

    def init_logdir(self) -> None:
        """Make its directory."""
        os.makedirs(self.path, exist_ok=True)

    init_local_path = init_logdir

    def set_location(self, location: Any) -> None:
        """Note where it runs."""
        self._location = location

    def set_config(self, config: dict[str, Any]) -> None:
        """Change its config."""
        self.outcome.config = dict(config)

    def set_experiment_tag(self, experiment_tag: str) -> None:
        """Change what tells it from the others."""
        self.outcome.experiment_tag = experiment_tag

    def clear_checkpoint(self) -> None:
        """Forget the checkpoint set by hand."""
        self._checkpoint = None

    def set_status(self, status: str) -> None:
        """Set its status.

        Raises:
            InvalidInputError: it is none.
        """
        if status not in _STATES:
            raise InvalidInputError(f"Trial.set_status({status!r}): must be one of {', '.join(_STATES)}")
        self.outcome.status = status

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Note its latest result."""
        self.outcome.last_result = flatten(result)

    def should_stop(self, result: dict[str, Any]) -> bool:
        """Return whether a result is its last one: ``done``, or a stopping criterion."""
        flat = flatten(result)
        rules = (StopRule(key=key, value=float(value)) for key, value in self.stopping_criterion.items())
        return bool(flat.get("done")) or StopRules(rules).met(flat)

    def should_checkpoint(self) -> bool:
        """Return whether its configuration asks for a checkpoint after its latest result."""
        result, config = self.last_result, self.checkpoint_config
        if result.get("done") and config.checkpoint_at_end:
            return True
        every = config.checkpoint_frequency
        return bool(every and result and (result.get("training_iteration") or 0) % every == 0)

    def on_checkpoint(self, checkpoint: Any) -> None:
        """Note a checkpoint: a `Checkpoint`, or what `Trainable.save` returned."""
        self._checkpoint = getattr(checkpoint, "checkpoint", checkpoint)

    def on_restore(self) -> None:
        """Do nothing: a restored Trainable has its counters from the checkpoint."""

    def should_recover(self) -> bool:
        """Return whether it may be retried after the failures so far."""
        return self.max_failures < 0 or self.num_failures < self.max_failures

    def reset(self) -> Trial:
        """Return a new trial of the same kind."""
        return Trial(
            self.trainable_name,
            config=dict(self.config),
            local_dir=self.local_dir,
            experiment_tag=self.experiment_tag,
            placement_group_factory=self.placement_group_factory,
            stopping_criterion=self.stopping_criterion,
            checkpoint_config=self.checkpoint_config,
            export_formats=self.export_formats,
            restore_path=self.restore_path,
            trial_name_creator=self.trial_name_creator,
            trial_dirname_creator=self.trial_dirname_creator,
            max_failures=self.max_failures,
        )

    __hash__ = TrialView.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialView) and self.trial_id == other.trial_id
