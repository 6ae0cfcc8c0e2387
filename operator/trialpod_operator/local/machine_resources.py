"""What this machine has, and which trial has how much of it.

Invariants:

* The sum of what is given out never exceeds what there is. Amounts are counted in ten-thousandths, so that no
  rounding adds up (three trials of a third of a GPU fit on one).
* A whole-GPU trial gets GPUs that no other trial uses; fractions are packed on the fullest GPU that has room, so that
  whole ones stay free. A trial never gets parts of several GPUs.

Two rules for the environment of a trial:

* ``CUDA_VISIBLE_DEVICES`` names the trial's GPUs. A trial that asked for none sees none, as in a cluster and as in
  Ray Tune: several uncounted trials on one GPU die of its memory at random. `MachineResources.hint` tells the user
  about idle GPUs. On a machine without GPUs the variable is left alone, unless the user says that there are none.
* ``OMP_NUM_THREADS`` (which OpenMP, OpenBLAS, MKL and PyTorch all follow) is the trial's cpus rounded down, at least
  1, unless the user has set it: by default each trial would start a thread for every core of the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trialpod.errors import InvalidInputError, nearest
from trialpod.gpus import visible_gpus
from trialpod.variables import CPUS, GPUS, RESOURCES, read_amount, read_amounts
from trialpod_operator.engine.vocabulary import MANIFEST, Vocabulary

_UNIT = 10_000
_GPU_NAMES = ("gpu", "GPU", "nvidia.com/gpu")
_CPU_NAMES = ("cpu", "CPU")
_MEMORY_NAMES = ("memory",)
_UNCOUNTED = ("ephemeral-storage",)

DEFAULT_CPU = 1.0
"""What a trial that names no cpu gets, on a machine that has as much; else it gets all that there is."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to share.

    Args:
        cpus: cores, possibly a fraction (a container's quota).
        memory: bytes.
        gpus: ids as ``CUDA_VISIBLE_DEVICES`` takes them.
        custom: amounts of other resources, by name.
        hides_gpus: whether trials see no GPU even though there may be some.
    """

    cpus: float
    memory: int
    gpus: tuple[str, ...] = ()
    custom: Mapping[str, float] = field(default_factory=dict)
    hides_gpus: bool = False

    @classmethod
    def detect(
        cls,
        *,
        cpus: float | None = None,
        gpus: int | None = None,
        environ: Mapping[str, str] | None = None,
        root: Path = Path("/"),
    ) -> Machine:
        """Read from this machine: affinity, cgroup limits (v1 and v2), physical memory, NVIDIA GPUs.

        Args:
            cpus: what the user says instead (``--cpus``).
            gpus: how many GPUs the user says there are (``--gpus``).
            environ: where to look for ``CUDA_VISIBLE_DEVICES``; None = this process's environment.
            root: where ``proc``, ``sys`` and ``dev`` are.
        """
        variables = os.environ if environ is None else environ
        cpus = read_amount(CPUS, variables.get(CPUS, "")) if cpus is None else cpus
        if gpus is None and (said := read_amount(GPUS, variables.get(GPUS, ""))) is not None:
            if said != int(said):
                raise InvalidInputError(f"variable {GPUS}={variables[GPUS]!r}: must be a whole number of at least 0")
            gpus = int(said)
        groups = _cgroups(root)
        if cpus is None:
            cpus = float(len(os.sched_getaffinity(0)))
            quota = _cpu_quota(root, groups)
            cpus = cpus if quota is None else min(cpus, quota)
        memory = _physical_memory(root)
        limit = _memory_limit(root, groups)
        found = visible_gpus(variables, root)
        if gpus is not None:  # of those that the user may use, if any are visible
            found = found[:gpus] if len(found) >= gpus else tuple(str(i) for i in range(gpus))
        memory = memory if limit is None else min(memory, limit)
        return cls(
            cpus=cpus,
            memory=memory,
            gpus=found,
            custom=read_amounts(RESOURCES, variables.get(RESOURCES, "")),
            hides_gpus=gpus == 0,
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one trial has. `env` is for its process; `gpus` are ids."""

    key: str
    cpus: float
    gpus: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Need:
    cpu: int
    memory: int
    gpu: int
    custom: Mapping[str, int]


class MachineResources:
    """Tracks which trial holds which of this machine's resources.

    Args:
        machine: what there is.
        max_processes: at most so many trials at once, whatever they ask for.
        environ: the user's environment, whose settings win; None = this process's.
        vocabulary: the words for remedies; may be set later.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        max_processes: int = 256,
        environ: Mapping[str, str] | None = None,
        vocabulary: Vocabulary = MANIFEST,
    ) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self.max_processes = max_processes
        self._environ = os.environ if environ is None else environ
        self._cpu = _units(machine.cpus)
        self._memory = machine.memory
        self._gpus = dict.fromkeys(machine.gpus, _UNIT)
        self._custom = {name: _units(amount) for name, amount in machine.custom.items()}
        self._allocations: dict[str, tuple[_Need, Mapping[str, int]]] = {}

    def check(self, request: Mapping[str, float]) -> None:
        """Raise InvalidInputError when the request could never fit, even on the idle machine."""
        need = self._need(request)
        machine = self.machine
        if need.cpu > _units(machine.cpus):
            raise self._infeasible("cpu", need.cpu / _UNIT, machine.cpus, f" or {self.vocabulary.overcommit}")
        if need.memory > machine.memory:
            raise self._infeasible("memory", need.memory, machine.memory, " (bytes)")
        if need.gpu > len(machine.gpus) * _UNIT:
            raise self._infeasible("gpu", need.gpu / _UNIT, len(machine.gpus), "; see CUDA_VISIBLE_DEVICES")
        for name, amount in need.custom.items():
            if amount > _units(machine.custom.get(name, 0.0)):
                raise self._infeasible(name, amount / _UNIT, machine.custom.get(name, 0.0), "")

    def fits(self, request: Mapping[str, float]) -> bool:
        """Return whether the request can be met now.

        Raises:
            InvalidInputError: it never can.
        """
        self.check(request)
        need = self._need(request)
        return (
            len(self._allocations) < self.max_processes
            and need.cpu <= self._cpu
            and need.memory <= self._memory
            and all(amount <= self._custom.get(name, 0) for name, amount in need.custom.items())
            and self._choose_gpus(need.gpu) is not None
        )

    def acquire(self, key: str, request: Mapping[str, float]) -> Allocation:
        """Give a trial what it asks for; `fits` must be True and `key` without an allocation."""
        if key in self._allocations:
            raise ValueError(f"{key!r} has an allocation already")
        if not self.fits(request):
            raise ValueError(f"{key!r} does not fit now; ask `fits` first")
        need = self._need(request)
        chosen = self._choose_gpus(need.gpu) or {}
        self._cpu -= need.cpu
        self._memory -= need.memory
        for gpu, share in chosen.items():
            self._gpus[gpu] -= share
        for name, amount in need.custom.items():
            self._custom[name] -= amount
        self._allocations[key] = (need, chosen)
        env = self.thread_env(request)
        if self.machine.gpus or self.machine.hides_gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
        return Allocation(key=key, cpus=need.cpu / _UNIT, gpus=tuple(chosen), env=env)

    def release(self, key: str) -> None:
        """Take back what a trial had; harmless when it has nothing."""
        allocation = self._allocations.pop(key, None)
        if allocation is None:
            return
        need, chosen = allocation
        self._cpu += need.cpu
        self._memory += need.memory
        for gpu, share in chosen.items():
            self._gpus[gpu] += share
        for name, amount in need.custom.items():
            self._custom[name] += amount

    def concurrency(self, request: Mapping[str, float]) -> int:
        """Return how many such trials fit on the idle machine at once (at least 1).

        Raises:
            InvalidInputError: not even one fits.
        """
        self.check(request)
        need = self._need(request)
        machine = self.machine
        counts = [self.max_processes]
        if need.cpu:
            counts.append(_units(machine.cpus) // need.cpu)
        if need.memory:
            counts.append(machine.memory // need.memory)
        if need.gpu >= _UNIT:
            counts.append(len(machine.gpus) // (need.gpu // _UNIT))
        elif need.gpu:
            counts.append(len(machine.gpus) * (_UNIT // need.gpu))
        counts += [_units(machine.custom[name]) // amount for name, amount in need.custom.items() if amount]
        return max(1, min(counts))

    def thread_env(self, request: Mapping[str, float]) -> dict[str, str]:
        """Return the variables that keep a trial's native threads within its cpus (also for the fork server)."""
        if self._environ.get("OMP_NUM_THREADS"):
            return {}
        return {"OMP_NUM_THREADS": str(max(1, self._need(request).cpu // _UNIT))}

    def hint(self, request: Mapping[str, float]) -> str | None:
        """Return advice when the trials leave GPUs idle, else None."""
        count = len(self.machine.gpus)
        if not count or self._need(request).gpu:
            return None
        one = count == 1
        return (
            f"{count} GPU{'' if one else 's'} of this machine {'is' if one else 'are'} not used, because the trials "
            f"ask for none; to use a GPU in each trial: {self.vocabulary.resource('gpu', 1)} (or 0.25 to share one)"
        )

    def effective_request(self, request: Mapping[str, float]) -> dict[str, float]:
        """Return the amounts that a trial with this request gets: a cpu even if it names none.

        Args:
            request: amounts by the names that users give; may be empty.
        """
        usual = {"CPU": "cpu", "GPU": "gpu"}
        amounts = {usual.get(name, name): float(amount) for name, amount in request.items()}
        return {"cpu": self._default_cpu, **amounts}

    @property
    def _default_cpu(self) -> float:
        return min(DEFAULT_CPU, self.machine.cpus or DEFAULT_CPU)

    def _need(self, request: Mapping[str, float]) -> _Need:
        cpu = _amount_of(request, _CPU_NAMES, self._default_cpu)
        gpu = _amount_of(request, _GPU_NAMES, 0.0)
        if gpu > 1 and gpu != int(gpu):
            raise InvalidInputError(
                f"resources: gpu: {gpu:g} is neither a whole number nor below 1; "
                f"use {self.vocabulary.resource('gpu', int(gpu))} or {int(gpu) + 1}"
            )
        known = {*_CPU_NAMES, *_GPU_NAMES, *_MEMORY_NAMES, *_UNCOUNTED}
        custom = {name: _units(_amount_of(request, (name,), 0.0)) for name in request if name not in known}
        return _Need(
            cpu=_units(cpu), memory=int(_amount_of(request, _MEMORY_NAMES, 0.0)), gpu=_units(gpu), custom=custom
        )

    def _infeasible(self, name: str, asked: float, there: float, more: str) -> InvalidInputError:
        known = ["cpu", "gpu", "memory"]
        guess = nearest(name, known) if not there and name not in known else None
        if guess is not None:
            return InvalidInputError(f"resources: {name}: this machine has none; did you mean {guess!r}?")
        remedy = f"ask for {'less' if there else 'none'} with {self.vocabulary.resource(name, there)}{more}"
        return InvalidInputError(
            f"resources: {name}: a trial asks for {asked:g}, this machine has {there:g}; {remedy}"
        )

    def _choose_gpus(self, need: int) -> dict[str, int] | None:
        if not need:
            return {}
        if need >= _UNIT:
            free = [gpu for gpu, left in self._gpus.items() if left == _UNIT]
            count = need // _UNIT
            return dict.fromkeys(free[:count], _UNIT) if len(free) >= count else None
        room = [(left, index) for index, left in enumerate(self._gpus.values()) if left >= need]
        return {self.machine.gpus[min(room)[1]]: need} if room else None


def _units(amount: float) -> int:
    return round(amount * _UNIT)


def _amount_of(request: Mapping[str, float], names: tuple[str, ...], default: float) -> float:
    for name in names:
        if name in request:
            amount = float(request[name])
            if not 0 <= amount < float("inf"):
                raise InvalidInputError(f"resources: {name}: {amount:g} is not an amount; use 0 or more")
            return amount
    return default


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # Which of these files exist differs from machine to machine.


def _cgroups(root: Path) -> dict[str, str]:
    """Return this process's cgroup by controller; "" is the unified hierarchy (cgroups(7))."""
    groups = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _upwards(base: Path, path: str) -> list[Path]:
    """Return the folders of a cgroup and all its ancestors: the tightest limit of them counts."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [base.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _cpu_quota(root: Path, groups: Mapping[str, str]) -> float | None:
    quotas = []
    for folder in _upwards(root / "sys/fs/cgroup", groups.get("", "/")):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    for folder in _upwards(root / "sys/fs/cgroup/cpu", groups.get("cpu", "/")):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # -1 = no limit
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory_limit(root: Path, groups: Mapping[str, str]) -> int | None:
    limits = [_read(folder / "memory.max") for folder in _upwards(root / "sys/fs/cgroup", groups.get("", "/"))]
    limits += [
        _read(folder / "memory.limit_in_bytes")
        for folder in _upwards(root / "sys/fs/cgroup/memory", groups.get("memory", "/"))
    ]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _physical_memory(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
