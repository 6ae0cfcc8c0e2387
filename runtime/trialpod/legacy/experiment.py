"""`Experiment`: one experiment as an object, for `tune.run` and `tune.run_experiments`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, nearest
from trialpod.legacy.run_arguments import OLDER, RunArguments, translated
from trialpod.tune.location.storage_context import StorageContext
from trialpod.tune.registry import register_trainable
from trialpod.tune.trial import Trial

__all__ = ["Experiment", "Trial", "_convert_to_experiment_list"]

if TYPE_CHECKING:
    from trialpod.tune.sync_config import SyncConfig
    from trialpod.tune.trial_config import CheckpointConfig


class Experiment:
    """One experiment: what to run, and how.

    Args:
        name: the experiment's name; None makes one.
        run: the Trainable, or the name that it is registered by.
        stop: as for `RunConfig`.
        time_budget_s: seconds (or a timedelta) after which it is stopped.
        config: the search space.
        resources_per_trial: as for `tune.with_resources`.
        num_samples: how often the search space is sampled.
        storage_path: where it is stored.
        storage_filesystem: as for `RunConfig`.
        checkpoint_config: which checkpoints are made and kept.
        sync_config: as for `RunConfig`.
        trial_name_creator: as for `TuneConfig`.
        trial_dirname_creator: as for `TuneConfig`.
        log_to_file: as for `RunConfig`.
        export_formats: as for `tune.run`.
        max_failures: how often one trial may fail and be retried.
        restore: as for `tune.run`.
        older: arguments of older versions, such as ``local_dir`` and ``checkpoint_freq``.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
        NotSupportedError: trialpod has no counterpart.
    """

    def __init__(
        self,
        name: str | None,
        run: Any,
        *,
        stop: Any = None,
        time_budget_s: Any = None,
        config: Mapping[str, Any] | None = None,
        resources_per_trial: Any = None,
        num_samples: int = 1,
        storage_path: Any = None,
        storage_filesystem: Any = None,
        checkpoint_config: CheckpointConfig | None = None,
        sync_config: SyncConfig | None = None,
        trial_name_creator: Any = None,
        trial_dirname_creator: Any = None,
        log_to_file: Any = False,
        export_formats: Any = None,
        max_failures: int = 0,
        restore: str | None = None,
        **older: Any,
    ) -> None:
        given = {
            "stop": stop,
            "time_budget_s": time_budget_s,
            "config": config,
            "resources_per_trial": resources_per_trial,
            "num_samples": num_samples,
            "storage_path": storage_path,
            "storage_filesystem": storage_filesystem,
            "checkpoint_config": checkpoint_config,
            "sync_config": sync_config,
            "trial_name_creator": trial_name_creator,
            "trial_dirname_creator": trial_dirname_creator,
            "log_to_file": log_to_file,
            "export_formats": export_formats,
            "max_failures": max_failures,
            "restore": restore,
        }
        self.name = name
        self.trainable = run
        self._given = given
        self.arguments: dict[str, Any] = {"name": name, **translated("tune.Experiment", given, older)}
        """By their current names, as `RunArguments` takes them."""
        self.stopper: Any = None
        """What `stop` is, where it is more than a dict of limits."""
        if stop is not None and not isinstance(stop, Mapping):
            from trialpod.tune.stopper import CombinedStopper, FunctionStopper, Stopper

            if isinstance(stop, (list, tuple)):
                self.stopper = CombinedStopper(*stop)
            else:
                self.stopper = stop if isinstance(stop, Stopper) or not callable(stop) else FunctionStopper(stop)
        RunArguments(where="tune.Experiment", trainable=run, **self.arguments).tuner()  # checks them
        if under_ray() and not isinstance(run, str):
            register_trainable(self.run_identifier, run)

    @property
    def run_identifier(self) -> str:
        """The name of its Trainable."""
        from trialpod.tune.trainable.checks import trainable_name

        return self.trainable if isinstance(self.trainable, str) else trainable_name(self.trainable)

    @property
    def spec(self) -> dict[str, Any]:
        """What it was given, as dicts of experiments name it."""
        apart = ("storage_path", "storage_filesystem", "sync_config")
        given = {k: v for k, v in self._given.items() if k not in apart}
        return {"run": self.run_identifier, **given, "storage": StorageContext(experiment=self.remote_path or "")}

    @property
    def remote_path(self) -> str | None:
        """The directory or URI that it is stored in; None where storage or name are not known before it runs."""
        place = self.arguments.get("storage_path")
        return f"{str(place).rstrip('/')}/{self.name}" if place is not None and self.name else None

    @property
    def public_spec(self) -> dict[str, Any]:
        """What of `spec` is of use to callbacks, searchers and schedulers."""
        return {name: self._given[name] for name in ("stop", "num_samples", "time_budget_s")}

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Return the experiment that a dict describes: ``run`` is the Trainable, the rest are arguments.

        Raises:
            InvalidInputError: there is no ``run``, or something that is not an argument.
        """
        if not isinstance(spec, Mapping):
            raise InvalidInputError(f"the experiment {name!r} must be a dict, not {type(spec).__name__}: {spec!r}")
        if "run" not in spec:
            raise InvalidInputError(f"the experiment {name!r} does not say what to run: add 'run': trainable")
        arguments = dict(spec)
        run = arguments.pop("run")
        if "env" in arguments:  # as RLlib's users wrote it
            arguments["config"] = {**(arguments.get("config") or {}), "env": arguments.pop("env")}
        import inspect

        known = [*inspect.signature(cls).parameters, *OLDER]
        for argument in arguments:
            if argument not in known:
                guess = nearest(str(argument), known)
                raise InvalidInputError(
                    f"the experiment {name!r} has no setting {argument!r}"
                    + (f"; did you mean {guess!r}?" if guess else "")
                )
        return cls(name, run, **arguments)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r}, {self.run_identifier!r})"


def _convert_to_experiment_list(experiments: Any) -> list[Experiment]:
    """Return experiments as a list of objects: one, several, or dicts that describe them."""
    if experiments is None:
        return []
    if isinstance(experiments, Experiment):
        return [experiments]
    if isinstance(experiments, Mapping):
        return [
            spec if isinstance(spec, Experiment) else Experiment.from_json(name, spec)
            for name, spec in experiments.items()
        ]
    if isinstance(experiments, (list, tuple)) and all(isinstance(each, Experiment) for each in experiments):
        return list(experiments)
    raise InvalidInputError(
        f"experiments must be a tune.Experiment, a list of them, or a dict of names and descriptions, not "
        f"{type(experiments).__name__}: {experiments!r}"
    )
