"""The names of ``ray`` itself, in a local form: objects live in this process, tasks and actors in threads of it.

Invariants:

* A task starts when it is submitted. An actor does one thing after the other, in the order in which it was asked.
* `get` raises the exception that the task raised.
* Nothing is sent anywhere: what is said to `init` about a cluster is named in a warning, and has no effect.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trialpod import variables
from trialpod.compat.ray.actors import ActorClass, ActorHandle, get_actor, method
from trialpod.compat.ray.exceptions import GetTimeoutError
from trialpod.compat.ray.objects import ObjectRef, start
from trialpod.compat.ray.table import VERSION
from trialpod.errors import InvalidInputError, NotSupportedError, WrongTypeError
from trialpod.gpus import visible_gpus

__all__ = [
    "ActorHandle",
    "ObjectID",
    "ObjectRef",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "wait",
]

log = logging.getLogger(__name__)
_ROOT = Path("/")  # where ``dev`` is
ObjectID = ObjectRef

# Of no consequence where there is no cluster: ports, dashboards, logging of a server.
_HARMLESS = [
    "ignore_reinit_error",
    "include_dashboard",
    "dashboard_host",
    "dashboard_port",
    "logging_level",
    "logging_format",
    "logging_config",
    "configure_logging",
    "local_mode",
    "namespace",
    "job_config",
    "object_store_memory",
    "_memory",
    "_temp_dir",
    "_plasma_directory",
    "_system_config",
    "_metrics_export_port",
    "_tracing_startup_hook",
    "_driver_object_store_memory",
    "_enable_object_reconstruction",
    "_redis_max_memory",
    "_redis_password",
    "_node_ip_address",
    "webui_host",
    "include_webui",
    "redis_password",
    "redis_max_memory",
    "memory",
    "driver_object_store_memory",
    "temp_dir",
    "lru_evict",
    "num_redis_shards",
]
_initialized = False
_before: dict[str, str | None] = {}
"""What the variables that `init` set were before; `shutdown` sets them back."""


class _Context(dict[str, Any]):
    """What `init` returns: the addresses, and usable in a ``with`` statement."""

    dashboard_url = ""
    python_version = platform.python_version()
    ray_version = VERSION

    def __init__(self) -> None:
        super().__init__(address="local", node_ip_address="127.0.0.1", webui_url="")

    @property
    def address_info(self) -> dict[str, Any]:
        """The addresses: this machine's, and of no web page."""
        return dict(self)

    def __enter__(self) -> _Context:
        """Do nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Call `shutdown`."""
        shutdown()

    def disconnect(self) -> None:
        """Call `shutdown`."""
        shutdown()


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    log_to_driver: bool | None = None,
    **others: Any,
) -> _Context:
    """Note that Ray has been started; nothing is.

    Args:
        address: of a cluster; there is none, and a warning says where trials run.
        num_cpus: how many CPUs experiments on this machine share out to trials.
        num_gpus: the same for GPUs.
        resources: the same for resources of any other name.
        log_to_driver: False: what trials print is only in their ``log.txt``, not on this terminal.
        **others: what is of no consequence here; the rest is named in a warning.

    Raises:
        InvalidInputError: a number is none.
    """
    global _initialized
    for variable, number in ((variables.CPUS, num_cpus), (variables.GPUS, num_gpus)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            raise InvalidInputError(f"ray.init: num_cpus and num_gpus must be numbers of at least 0, not {number!r}")
        _set(variable, f"{number:g}")
    if resources:
        if not all(isinstance(amount, (int, float)) and amount >= 0 for amount in resources.values()):
            raise InvalidInputError(f"ray.init(resources={resources!r}): must be a dict of names to numbers")
        _set(variables.RESOURCES, ",".join(f"{name}={amount:g}" for name, amount in resources.items()))
    if log_to_driver is not None:
        _set(variables.TRIAL_OUTPUT, "1" if log_to_driver else "0")
    if address not in (None, "local"):
        log.warning("ray.init(address=%r): there is no Ray cluster; trials run where the Tuner's backend runs them",
                    address)  # fmt: skip
    unknown = [name for name in others if name not in _HARMLESS]
    if unknown:
        log.warning("ray.init(%s): has no effect with trialpod", ", ".join(f"{name}=..." for name in unknown))
    _initialized = True
    return _Context()


def _set(variable: str, value: str) -> None:
    _before.setdefault(variable, os.environ.get(variable))
    os.environ[variable] = value


def shutdown(_exiting_interpreter: bool = False) -> None:
    """Note that Ray has been stopped; what `init` was given does not count any more."""
    global _initialized
    _initialized = False
    while _before:
        variable, value = _before.popitem()
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` was not."""
    return _initialized


def put(value: Any, **_options: Any) -> ObjectRef:
    """Return a reference to a value; it travels to trials as the value itself."""
    if isinstance(value, ObjectRef):
        raise WrongTypeError("ray.put got an ObjectRef; it refers to a value already, pass it on as it is")
    return ObjectRef.of(value)


def get(object_refs: Any, *, timeout: float | None = None) -> Any:
    """Return the value of a reference, or the values of a list of them.

    Args:
        object_refs: one or a list.
        timeout: seconds for all of them; None waits without limit.

    Raises:
        GetTimeoutError: it was too long.
        InvalidInputError: something is not a reference.
        Exception: what a task raised.
    """
    import time

    deadline = None if timeout is None else time.monotonic() + timeout
    many = object_refs if isinstance(object_refs, (list, tuple)) else [object_refs]
    for ref in many:
        if not isinstance(ref, ObjectRef):
            raise InvalidInputError(
                f"ray.get needs an ObjectRef or a list of them, not {type(ref).__name__}; "
                "calls of remote functions return them: f.remote(...)"
            )
    values = []
    for ref in many:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not ref.wait(left):
            raise GetTimeoutError(f"ray.get: a value was not there within {timeout} s")
        values.append(ref.value())
    return values if isinstance(object_refs, (list, tuple)) else values[0]


def wait(
    object_refs: list[ObjectRef],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,  # noqa: ARG001
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Wait until some values are there, and return the references to these and to the others.

    Args:
        object_refs: a list of references, no two the same.
        num_returns: how many to wait for.
        timeout: seconds; None waits without limit.
        fetch_local: accepted for compatibility, unused.

    Raises:
        InvalidInputError: an argument cannot be used.
    """
    if not isinstance(object_refs, list) or any(not isinstance(ref, ObjectRef) for ref in object_refs):
        raise WrongTypeError("ray.wait needs a list of ObjectRefs, even for one")
    if not object_refs:
        return [], []
    if len(set(object_refs)) < len(object_refs):
        raise InvalidInputError("ray.wait got the same ObjectRef twice")
    if not 0 < num_returns <= len(object_refs):
        raise InvalidInputError(f"ray.wait(num_returns={num_returns}): must be 1 to {len(object_refs)}")
    ObjectRef.wait_for(object_refs, num_returns, timeout)
    ready = [ref for ref in object_refs if ref.ready][:num_returns]
    return ready, [ref for ref in object_refs if ref not in ready]


class RemoteFunction:
    """A function whose `remote` starts it in a thread."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = function.__doc__

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the function and return a reference to what it will return; several with ``num_returns``."""
        return start(self._function, args, kwargs, self._options.get("num_returns", 1))

    def options(self, **options: Any) -> RemoteFunction:
        """Return the function with other options."""
        return RemoteFunction(self._function, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as Ray does.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"a remote function is called by {self.__name__}.remote(...)")


def remote(*args: Any, **options: Any) -> Any:
    """Make a function or a class remote: ``@ray.remote`` or ``@ray.remote(num_cpus=2)``.

    They run in threads of this process: what they do in Python does not run faster side by side.

    Raises:
        InvalidInputError: it is neither a function nor a class.
        NotSupportedError: it is a coroutine function.
    """
    if args and (len(args) > 1 or options):
        raise InvalidInputError("ray.remote takes a function or a class, or options by name: @ray.remote(num_cpus=2)")
    if args:
        return _remote(args[0], {})
    return lambda target: _remote(target, options)


def _remote(target: Any, options: dict[str, Any]) -> Any:
    import inspect

    if isinstance(target, type):
        return ActorClass(target, options)
    if not callable(target):
        raise InvalidInputError(f"ray.remote needs a function or a class, not {type(target).__name__}")
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
        raise NotSupportedError(
            f"ray.remote: {target.__name__} is a coroutine or generator function, which the local form of tasks "
            "does not run; write a plain function"
        )
    return RemoteFunction(target, options)


def kill(actor: Any, *, no_restart: bool = True) -> None:  # noqa: ARG001
    """End an actor after what it is doing now; what it was asked besides fails."""
    if not isinstance(actor, ActorHandle):
        raise InvalidInputError(f"ray.kill needs an actor's handle, not {type(actor).__name__}")
    actor._end()  # noqa: SLF001 - a handle has no public names of its own, they are the actor's


def cancel(object_ref: ObjectRef, *, force: bool = False, recursive: bool = True) -> None:  # noqa: ARG001
    """Refuse: a thread cannot be interrupted.

    Raises:
        NotSupportedError: the task has not ended.
    """
    if not object_ref.ready:
        raise NotSupportedError("ray.cancel: tasks run in threads here, which cannot be interrupted; let it end")


def cluster_resources() -> dict[str, float]:
    """Return what this machine has, or what `init` was given."""
    cpus = variables.read_amount(variables.CPUS, os.environ.get(variables.CPUS, ""))
    gpus = variables.read_amount(variables.GPUS, os.environ.get(variables.GPUS, ""))
    found = {"CPU": float(len(os.sched_getaffinity(0))) if cpus is None else cpus}
    if gpus is None:
        gpus = float(len(get_gpu_ids())) or None
    if gpus is not None:
        found["GPU"] = gpus
    return found | variables.read_amounts(variables.RESOURCES, os.environ.get(variables.RESOURCES, ""))


def available_resources() -> dict[str, float]:
    """Return the same as `cluster_resources`: tasks and actors here have no account."""
    return cluster_resources()


def nodes() -> list[dict[str, Any]]:
    """Return this machine as the one node."""
    import socket

    return [
        {
            "NodeID": "local",
            "Alive": True,
            "NodeManagerAddress": "127.0.0.1",
            "NodeManagerHostname": socket.gethostname(),
            "Resources": cluster_resources(),
        }
    ]


def get_gpu_ids() -> list[int | str]:
    """Return the GPUs that this process may use: as ``CUDA_VISIBLE_DEVICES`` says, else the trial's or all."""
    from trialpod.tune.session import get_context, get_trial_resources

    granted = get_trial_resources()
    if granted is not None and "CUDA_VISIBLE_DEVICES" not in os.environ:
        # A trial's pod: its container has the GPUs that it was granted, and CUDA counts them from 0.
        return list(range(math.ceil(granted.gpu / get_context().get_world_size())))
    return [int(name) if name.isdecimal() else name for name in visible_gpus(os.environ, _ROOT)]


class _RuntimeContext:
    """What `get_runtime_context` returns."""

    namespace = "local"
    gcs_address = ""

    def get_node_id(self) -> str:
        """Return "local"."""
        return "local"

    def get_job_id(self) -> str:
        """Return this process's number."""
        return str(os.getpid())

    def get_worker_id(self) -> str:
        """Return this process's number."""
        return str(os.getpid())

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what the running trial was granted, else nothing."""
        from trialpod.tune.session import get_trial_resources

        found = get_trial_resources()
        return found.required_resources if found is not None else {}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the GPUs that this process may use."""
        return {"GPU": [str(name) for name in get_gpu_ids()]}

    def get(self) -> dict[str, Any]:
        """Return the ids as a dict."""
        return {"node_id": self.get_node_id(), "job_id": self.get_job_id(), "namespace": self.namespace}


def get_runtime_context() -> _RuntimeContext:
    """Return the identity of this process."""
    return _RuntimeContext()
