from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.engine.vocabulary import SCRIPT
from trialpod_operator.local.machine_resources import Machine, MachineResources

LAPTOP = Machine(cpus=4, memory=8 * 2**30, gpus=("0", "1"))


def resources_of(machine: Machine = LAPTOP, **environ: str) -> MachineResources:
    return MachineResources(machine, environ=environ)


def test_cpus_are_given_out_and_taken_back() -> None:
    account = resources_of()
    account.acquire("a", {"cpu": 3})
    assert not account.fits({"cpu": 2})
    assert account.fits({})  # one cpu is the default
    account.release("a")
    account.release("a")
    assert account.fits({"cpu": 4})


def test_the_default_fits_on_a_machine_with_less_than_one_cpu() -> None:
    account = resources_of(Machine(cpus=0.5, memory=2**30))
    account.check({})
    assert account.concurrency({}) == 1
    assert account.effective_request({}) == {"cpu": 0.5}
    assert account.acquire("a", {}).cpus == 0.5
    assert not account.fits({})
    with pytest.raises(InvalidInputError, match=r"a trial asks for 1, this machine has 0\.5"):
        account.check({"cpu": 1})
    with pytest.raises(InvalidInputError, match="this machine has 0"):
        resources_of(Machine(cpus=0, memory=2**30)).check({})


def test_fractions_do_not_add_up_to_rounding_errors() -> None:
    account = resources_of()
    for index in range(40):
        account.acquire(str(index), {"cpu": 0.1})
    assert not account.fits({"cpu": 0.1})
    thirds = resources_of()
    for index in range(6):
        thirds.acquire(str(index), {"gpu": 1 / 3, "cpu": 0})
    assert not thirds.fits({"gpu": 1 / 3, "cpu": 0})


def test_fractional_gpus_are_packed_so_that_whole_ones_stay_free() -> None:
    account = resources_of()
    assert account.acquire("a", {"gpu": 0.5}).gpus == ("0",)
    assert account.acquire("b", {"gpu": 0.25}).gpus == ("0",)
    assert account.acquire("c", {"gpu": 1}).gpus == ("1",)
    assert not account.fits({"gpu": 0.5})
    assert account.fits({"gpu": 0.25})
    account.release("a")
    assert account.acquire("d", {"nvidia.com/gpu": 0.5}).env["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_trial_never_gets_parts_of_several_gpus() -> None:
    account = resources_of()
    account.acquire("a", {"gpu": 0.6})
    account.acquire("b", {"gpu": 0.6})
    assert not account.fits({"gpu": 0.5})
    with pytest.raises(InvalidInputError, match=r"gpu: 1\.5 is neither"):
        account.fits({"gpu": 1.5})


def test_a_trial_sees_its_own_gpus_only() -> None:
    account = resources_of()
    assert account.acquire("both", {"gpu": 2}).env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert account.acquire("none", {}).env["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in resources_of(Machine(cpus=1, memory=1)).acquire("a", {}).env


@pytest.mark.parametrize(("said", "environ"), [(0, {}), (None, {"TRIALPOD_GPUS": "0"})])
def test_a_trial_sees_no_gpu_where_there_are_to_be_none(said: int | None, environ: dict[str, str]) -> None:
    machine = Machine.detect(gpus=said, environ={"CUDA_VISIBLE_DEVICES": "2", **environ})
    assert resources_of(machine).acquire("a", {}).env["CUDA_VISIBLE_DEVICES"] == ""


def test_idle_gpus_are_pointed_out() -> None:
    assert "--set spec.resources.gpu=1" in resources_of().hint({"cpu": 1})
    assert resources_of().hint({"gpu": 1}) is None
    assert resources_of(Machine(cpus=1, memory=1)).hint({}) is None


@pytest.mark.parametrize(("cpu", "threads"), [(0, "1"), (0.5, "1"), (1, "1"), (2.5, "2"), (4, "4")])
def test_native_threads_follow_the_cpus_of_the_trial(cpu: float, threads: str) -> None:
    assert resources_of().acquire("a", {"cpu": cpu}).env["OMP_NUM_THREADS"] == threads


def test_the_users_own_number_of_threads_wins() -> None:
    assert "OMP_NUM_THREADS" not in resources_of(OMP_NUM_THREADS="3").acquire("a", {}).env


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"cpu": 8}, "cpu: a trial asks for 8, this machine has 4; .*--set spec.resources.cpu=4 .*--cpus N"),
        ({"gpu": 3}, "gpu: a trial asks for 3, this machine has 2; .*CUDA_VISIBLE_DEVICES"),
        ({"memory": 2**40}, "memory: a trial asks for"),
        ({"example.com/fpga": 1}, "example.com/fpga: a trial asks for 1, this machine has 0; ask for none"),
        ({"cpus": 1}, "cpus: this machine has none; did you mean 'cpu'"),
        ({"gpus": 1}, "gpus: this machine has none; did you mean 'gpu'"),
        ({"cpu": -1}, "cpu: -1 is not an amount"),
        ({"cpu": float("nan")}, "cpu: nan is not an amount"),
    ],
)
def test_what_can_never_fit_is_an_error_with_a_remedy(request_: dict[str, float], says: str) -> None:
    for call in (resources_of().fits, resources_of().concurrency, resources_of().check):
        with pytest.raises(InvalidInputError, match=says):
            call(request_)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"cpu": 8}, "with_resources(trainable, {'cpu': 4}) or set the variable TRIALPOD_CPUS=N to overcommit"),
        ({"gpu": 3}, "ask for less with tune.with_resources(trainable, {'gpu': 2})"),
    ],
)
def test_scripts_get_the_remedy_in_python(request_: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        MachineResources(LAPTOP, environ={}, vocabulary=SCRIPT).check(request_)
    assert says in str(refused.value)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("request_", "count"),
    [
        ({}, 4),
        ({"cpu": 3}, 1),
        ({"cpu": 0.5}, 8),
        ({"cpu": 1, "gpu": 1}, 2),
        ({"cpu": 0, "gpu": 0.4}, 4),
        ({"cpu": 1, "memory": 3 * 2**30}, 2),
        ({"cpu": 0}, 256),
        ({"cpu": 1, "ephemeral-storage": 10**12}, 4),
    ],
)
def test_concurrency_is_how_many_fit_at_once(request_: dict[str, float], count: int) -> None:
    account = resources_of()
    assert account.concurrency(request_) == count
    for index in range(count):
        account.acquire(str(index), request_)
    assert not account.fits(request_)


def test_custom_resources_are_counted() -> None:
    account = resources_of(Machine(cpus=4, memory=1, custom={"licence": 1}))
    account.acquire("a", {"licence": 1})
    assert not account.fits({"licence": 1})


def test_mistakes_of_the_caller_are_errors() -> None:
    account = resources_of()
    account.acquire("a", {"cpu": 4})
    with pytest.raises(ValueError, match="already"):
        account.acquire("a", {"cpu": 0})
    with pytest.raises(ValueError, match="does not fit now"):
        account.acquire("b", {"cpu": 1})


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:        2048 kB\nMemFree: 1 kB\n"}


def test_this_machine_has_something() -> None:
    machine = Machine.detect(environ={})
    assert machine.cpus > 0
    assert machine.memory > 2**20


def test_the_tightest_limit_of_all_enclosing_cgroups_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/container/memory.max": "1048576\n",
        },
    )
    machine = Machine.detect(environ={}, root=root)
    assert (machine.cpus, machine.memory) == (0.5, 2**20)


def test_limits_of_version_1_cgroups_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a\n0::/\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "25000\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    machine = Machine.detect(environ={}, root=root)
    assert (machine.cpus, machine.memory) == (0.25, 2048 * 1024)


def test_what_the_user_says_wins() -> None:
    machine = Machine.detect(cpus=64, gpus=2, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert (machine.cpus, machine.gpus) == (64, ("0", "1"))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("2,3", ("2", "3")),
        ("GPU-8a1, MIG-77", ("GPU-8a1", "MIG-77")),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("NoDevFiles", ()),
        (None, ("0", "1")),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_see(
    tmp_path: Path, visible: str | None, gpus: tuple[str, ...]
) -> None:
    devices = {f"dev/{name}": "" for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm")}
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert Machine.detect(environ=environ, root=write(tmp_path, {**MEMINFO, **devices})).gpus == gpus


@pytest.mark.parametrize(
    ("visible", "said", "gpus"),
    [("2,3", 1, ("2",)), ("2,3", 2, ("2", "3")), ("2,3", 3, ("0", "1", "2")), ("2", 0, ())],
)
def test_a_number_of_gpus_is_of_those_that_are_visible(visible: str, said: int, gpus: tuple[str, ...]) -> None:
    assert Machine.detect(gpus=said, environ={"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus
