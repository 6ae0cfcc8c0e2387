"""Names of ``ray.train`` and ``ray.air`` that lie in modules of their own or are only exceptions."""

from __future__ import annotations

from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.legacy.checkpoint_dir import save_checkpoint as _save_folder
from trialpod.tune import session
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.placement_groups import PlacementGroupFactory


class TrainingFailedError(TrialpodError, RuntimeError):
    """Raised by Ray's trainers; here only a name for ``except``."""


class SessionMisuseError(TrialpodError):
    """Never raised; a name for ``except``."""


class ScalingConfig(PlacementGroupFactory):
    """The resources of a trial that has workers, for `tune.with_resources`. A trial is one process with the sum.

    Args:
        trainer_resources: what the Trainable itself needs; None is one CPU.
        num_workers: how many workers it starts.
        use_gpu: whether each worker has a GPU.
        resources_per_worker: what each worker needs; None is a GPU if `use_gpu`, else a CPU.
        placement_strategy: accepted for compatibility, unused: everything is together.
        accelerator_type: accepted for compatibility, unused.

    Raises:
        InvalidInputError: `num_workers` is negative or not an integer, or the GPUs contradict `use_gpu`.
    """

    def __init__(
        self,
        trainer_resources: dict[str, float] | None = None,
        num_workers: int | None = None,
        use_gpu: bool = False,
        resources_per_worker: dict[str, float] | None = None,
        placement_strategy: str = "PACK",
        accelerator_type: str | None = None,
    ) -> None:
        if num_workers is not None and (not isinstance(num_workers, int) or num_workers < 0):
            raise InvalidInputError(f"ScalingConfig(num_workers={num_workers!r}): must be a number of workers")
        worker: dict[str, float] = (
            dict(resources_per_worker) if resources_per_worker else {"GPU" if use_gpu else "CPU": 1}
        )
        if use_gpu:
            worker.setdefault("GPU", 1)
        if bool(worker.get("GPU")) != bool(use_gpu):
            raise InvalidInputError(
                f"ScalingConfig(use_gpu={use_gpu!r}, resources_per_worker={resources_per_worker!r}): use_gpu and the "
                "GPUs of a worker contradict each other"
            )
        self.trainer_resources, self.num_workers = trainer_resources, num_workers
        self.use_gpu, self.resources_per_worker = use_gpu, resources_per_worker
        self.placement_strategy, self.accelerator_type = placement_strategy, accelerator_type
        total: dict[str, float] = {"CPU": 1} if trainer_resources is None else dict(trainer_resources)
        for name, amount in worker.items():
            total[name] = total.get(name, 0) + amount * (num_workers or 0)
        super().__init__([total])

    @property
    def total_resources(self) -> dict[str, float]:
        """The sum."""
        return self.required_resources

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """Return the sum as one bundle."""
        return PlacementGroupFactory(self.bundles)


def save_checkpoint(**state: Any) -> None:
    """Keep values as the checkpoint of the next report."""
    import tempfile

    _save_folder(Checkpoint.from_dict(state).to_directory(tempfile.mkdtemp(prefix="trialpod-checkpoint_train-")))


def load_checkpoint() -> dict[str, Any] | None:
    """Return the values of the checkpoint to resume from, None if there is none."""
    found = session.get_checkpoint()
    return None if found is None else found.to_dict()
