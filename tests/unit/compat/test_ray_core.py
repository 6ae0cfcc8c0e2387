from __future__ import annotations

import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trialpod.compat.ray import core as ray
from trialpod.compat.ray.exceptions import GetTimeoutError, RayActorError
from trialpod.errors import InvalidInputError
from trialpod.protocol.readable import readable
from trialpod.tune import session as sessions
from trialpod.tune.session import Session, TrialInfo


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRIALPOD_CPUS", raising=False)
    monkeypatch.delenv("TRIALPOD_GPUS", raising=False)
    monkeypatch.delenv("TRIALPOD_RESOURCES", raising=False)
    yield
    ray.shutdown()


def test_values_are_put_and_got() -> None:
    ref = ray.put({"a": 1})
    assert ray.get(ref) == {"a": 1}
    assert ray.get([ref, ray.put(2)]) == [{"a": 1}, 2]
    assert ray.get(pickle.loads(pickle.dumps(ref))) == {"a": 1}
    for wrong in (5, [ref, 5]):
        with pytest.raises(InvalidInputError, match="needs an ObjectRef"):
            ray.get(wrong)


def test_files_show_all_references_alike() -> None:
    """A script may restore an experiment with references that it has made again, as Ray's documentation does."""
    assert readable({"model": ray.put(1)}) == readable({"model": ray.put(2)}) == {"model": "<ObjectRef>"}


def test_init_tells_addresses_in_both_forms() -> None:
    """Older scripts index what ``ray.init`` returns, newer ones ask its attributes."""
    context = ray.init()
    assert context["node_ip_address"] == context.address_info["node_ip_address"] == "127.0.0.1"
    assert (context["webui_url"], context.dashboard_url) == ("", "")
    assert context.ray_version.startswith("2.")


@ray.remote
def add(a: int, b: int) -> int:
    return a + b


def test_a_remote_function_takes_references_and_options() -> None:
    assert ray.get(add.remote(add.remote(1, 2), ray.put(3))) == 6
    assert ray.get(add.options(num_cpus=2).remote(1, b=1)) == 2
    two = ray.remote(num_returns=2)(lambda: (1, 2))
    first, second = two.remote()
    assert ray.get([first, second]) == [1, 2]
    with pytest.raises(TypeError, match=r"add\.remote"):
        add(1, 2)


def test_what_a_task_raises_is_raised_by_get() -> None:
    def fails() -> None:
        raise KeyError("lr")

    with pytest.raises(KeyError, match="lr"):
        ray.get(ray.remote(fails).remote())


def test_waiting_returns_what_is_there_and_the_rest() -> None:
    resume = threading.Event()
    slow, quick = ray.remote(resume.wait).remote(), ray.put(1)
    assert ray.wait([slow, quick]) == ([quick], [slow])
    assert ray.wait([slow], timeout=0) == ([], [slow])
    with pytest.raises(GetTimeoutError, match="within 0 s"):
        ray.get(slow, timeout=0)
    with pytest.raises(NotImplementedError, match="cannot be interrupted"):
        ray.cancel(slow)
    resume.set()
    assert ray.wait([slow, quick], num_returns=2) == ([slow, quick], [])
    with pytest.raises(InvalidInputError, match="num_returns=3"):
        ray.wait([slow, quick], num_returns=3)


@ray.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError("negative")
        self.n = start
        self.threads: set[int] = set()

    def add(self, n: int = 1) -> int:
        self.n += n
        self.threads.add(threading.get_ident())
        return self.n

    @ray.method(num_returns=2)
    def state(self) -> tuple[int, int]:
        return self.n, len(self.threads)


def test_an_actor_does_one_thing_after_the_other_in_one_thread() -> None:
    counter = Counter.remote(5)
    assert ray.get([counter.add.remote() for _ in range(20)]) == list(range(6, 26))
    assert ray.get(counter.state.remote()) == [25, 1]
    with pytest.raises(AttributeError, match="has no method 'sub'"):
        _ = counter.sub
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        Counter()


def test_actors_have_names_and_an_end() -> None:
    counter = Counter.options(name="the counter").remote()
    assert ray.get_actor("the counter") is counter
    assert Counter.options(name="the counter", get_if_exists=True).remote() is counter
    with pytest.raises(InvalidInputError, match="already"):
        Counter.options(name="the counter").remote()
    ray.kill(counter)
    with pytest.raises(RayActorError, match="was killed"):
        ray.get(counter.add.remote())
    with pytest.raises(ValueError, match="no actor called"):
        ray.get_actor("the counter")


class TestAnActorThatWasKilled:
    @pytest.mark.parametrize("end", [ray.kill, lambda actor: actor.__ray_terminate__.remote()])
    def test_its_object_and_its_thread_are_freed(self, end: Callable[[Any], Any]) -> None:
        freed = threading.Event()

        class Large:
            def thread(self) -> threading.Thread:
                weakref.finalize(self, freed.set)
                return threading.current_thread()

        actor = ray.remote(Large).remote()
        thread = ray.get(actor.thread.remote())
        end(actor)
        thread.join(10)
        assert not thread.is_alive()
        assert freed.wait(10)
        with pytest.raises(RayActorError, match="was killed"):
            ray.get(actor.thread.remote())

    def test_what_it_was_asked_besides_fails(self) -> None:
        begun, resume = threading.Event(), threading.Event()

        class Slow:
            def work(self) -> int:
                begun.set()
                resume.wait()
                return 1

        actor = ray.remote(Slow).remote()
        first, second = actor.work.remote(), actor.work.remote()
        begun.wait()
        ray.kill(actor)
        ray.kill(actor)
        third = actor.work.remote()
        resume.set()
        assert ray.get(first) == 1
        for ref in (second, third):
            with pytest.raises(RayActorError, match="was killed"):
                ray.get(ref, timeout=10)


def test_an_actor_that_cannot_be_made_tells_everyone_who_asks() -> None:
    with pytest.raises(RayActorError, match="could not be made: ValueError: negative"):
        ray.get(Counter.remote(-1).add.remote())


def test_an_actor_does_not_travel() -> None:
    with pytest.raises(NotImplementedError, match="make it in the Trainable"):
        pickle.dumps(Counter.remote())


def test_what_threads_cannot_run_is_refused_where_it_is_written() -> None:
    async def task() -> None: ...

    class Asynchronous:
        async def work(self) -> None: ...

    for target in (task, Asynchronous):
        with pytest.raises(NotImplementedError, match="coroutine"):
            ray.remote(target)


def test_init_counts_cpus_and_names_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    assert not ray.is_initialized()
    with ray.init(num_cpus=3, ignore_reinit_error=True) as context:
        assert ray.is_initialized()
        assert context.address_info["address"] == "local"
        assert ray.cluster_resources()["CPU"] == 3
        assert not caplog.text
    assert not ray.is_initialized()
    ray.init(address="auto", runtime_env={"pip": ["x"]})
    assert "no Ray cluster" in caplog.text
    assert "runtime_env=..." in caplog.text
    with pytest.raises(InvalidInputError, match="at least 0"):
        ray.init(num_cpus=-1)


def test_init_says_whether_output_of_trials_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIALPOD_TRIAL_OUTPUT", "1")
    with ray.init(log_to_driver=False):
        assert os.environ["TRIALPOD_TRIAL_OUTPUT"] == "0"
        ray.init(log_to_driver=True, ignore_reinit_error=True)
        assert os.environ["TRIALPOD_TRIAL_OUTPUT"] == "1"
    assert os.environ["TRIALPOD_TRIAL_OUTPUT"] == "1"


def test_shutdown_takes_back_what_init_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIALPOD_CPUS", "8")
    monkeypatch.delenv("TRIALPOD_TRIAL_OUTPUT", raising=False)
    before = dict(os.environ)
    ray.init(num_cpus=2, num_gpus=1, resources={"license": 2}, log_to_driver=False)
    ray.init(num_cpus=3, ignore_reinit_error=True)
    assert ray.cluster_resources() == {"CPU": 3, "GPU": 1, "license": 2}
    ray.shutdown()
    assert dict(os.environ) == before
    monkeypatch.setenv("TRIALPOD_TRIAL_OUTPUT", "0")
    ray.shutdown()
    assert os.environ["TRIALPOD_TRIAL_OUTPUT"] == "0"


def test_this_machine_is_the_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-a")
    assert ray.get_gpu_ids() == [0, "GPU-a"]
    (node,) = ray.nodes()
    assert node["Alive"]
    assert ray.available_resources()["GPU"] == 2
    context: Any = ray.get_runtime_context()
    assert context.get_node_id() == "local"
    assert context.get_assigned_resources() == {}


class TestGpus:
    """What scripts find when nothing has set CUDA_VISIBLE_DEVICES."""

    @pytest.fixture(autouse=True)
    def _two_gpus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "dev").mkdir()
        for name in ("nvidia0", "nvidia3", "nvidiactl"):
            (tmp_path / "dev" / name).touch()
        monkeypatch.setattr(ray, "_ROOT", tmp_path)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    @pytest.fixture
    def trial(self) -> Iterator[Callable[..., None]]:
        def begin(world_size: int = 1, **resources: float) -> None:
            info = TrialInfo(experiment="e", trial_name="n", trial_id="i", resources=resources, world_size=world_size)
            sessions.install(Session(info, SimpleNamespace()))  # type: ignore[arg-type]

        yield begin
        sessions.install(None)

    def test_are_those_that_experiments_share(self, tmp_path: Path) -> None:
        from trialpod_operator.local.machine_resources import Machine

        gpus = Machine.detect(environ={}, root=tmp_path).gpus
        assert [str(name) for name in ray.get_gpu_ids()] == list(gpus)
        assert ray.cluster_resources()["GPU"] == len(gpus) == 2

    def test_are_none_on_a_machine_without(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(ray, "_ROOT", tmp_path / "empty")
        assert ray.get_gpu_ids() == []
        assert "GPU" not in ray.cluster_resources()

    def test_end_at_what_cuda_does_not_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,0")
        assert ray.get_gpu_ids() == [1]

    def test_of_a_trial_are_those_granted(self, trial: Callable[..., None]) -> None:
        trial(gpu=1)
        assert ray.get_gpu_ids() == [0]
        assert ray.get_runtime_context().get_accelerator_ids() == {"GPU": ["0"]}
        trial(cpu=1)
        assert ray.get_gpu_ids() == []

    def test_of_a_pod_are_its_part_of_a_group(self, trial: Callable[..., None]) -> None:
        trial(world_size=2, **{"nvidia.com/gpu": 4})
        assert ray.get_gpu_ids() == [0, 1]


def test_init_sets_the_shared_resources() -> None:
    from trialpod_operator.local.machine_resources import Machine

    machine = Machine.detect(environ={"TRIALPOD_CPUS": "3", "TRIALPOD_GPUS": "2"})
    assert (machine.cpus, machine.gpus) == (3.0, ("0", "1"))
    assert Machine.detect(cpus=1, environ={"TRIALPOD_CPUS": "3"}).cpus == 1
    with pytest.raises(InvalidInputError, match="TRIALPOD_CPUS='many'"):
        Machine.detect(environ={"TRIALPOD_CPUS": "many"})
