"""Helpers of ``ray.tune.utils`` that other code imports, and that need nothing of Ray."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError

log = logging.getLogger(__name__)


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN."""
    return (isinstance(value, float) and value != value) or _numpy(value, "isnan")


def is_nan_or_inf(value: Any) -> bool:
    """Return whether a value is NaN or infinite."""
    return is_nan(value) or (isinstance(value, float) and abs(value) == float("inf")) or _numpy(value, "isinf")


def _numpy(value: Any, test: str) -> bool:
    if type(value).__module__ != "numpy":
        return False
    import numpy as np

    return bool(np.any(getattr(np, test)(value)))


def flatten_dict(
    dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False, flatten_list: bool = False
) -> dict[str, Any]:
    """Return nested dicts as one in Ray's order, level by level; empty ones inside are left out.

    Args:
        dt: what to flatten.
        delimiter: between the parts of a name.
        prevent_delimiter: refuse names that have the delimiter in them.
        flatten_list: lists as well, by the numbers of their items.

    Raises:
        InvalidInputError: a name has the delimiter in it, and `prevent_delimiter` is set.
    """
    kinds = (dict, list) if flatten_list else (dict,)
    flat = dict(dt)
    checked: list[Any] = [*dt]
    while True:
        if prevent_delimiter and (bad := next((key for key in checked if delimiter in str(key)), None)) is not None:
            raise InvalidInputError(f"the name {bad!r} has {delimiter!r} in it, which divides names of nested dicts")
        nested = [key for key, value in flat.items() if isinstance(value, kinds)]
        if not nested:
            return flat
        found, checked = {}, []
        for key in nested:
            value = flat.pop(key)
            for name, inner in enumerate(value) if isinstance(value, list) else value.items():
                found[f"{key}{delimiter}{name}"] = inner
                checked.append(name)
        flat.update(found)


def parse_spec_vars(spec: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the constants, the distributions and the grids of a search space, each as pairs of path and value."""
    from trialpod.tune.search.sample import Categorical, Domain, choice

    constants: list[Any] = []
    domains: list[Any] = []
    grids: list[Any] = []

    def walk(node: Any, path: tuple[Any, ...]) -> None:
        if isinstance(node, Domain):
            is_grid = isinstance(node, Categorical) and node.is_grid()
            (grids if is_grid else domains).append((path, node))
        elif isinstance(node, Mapping) and set(node) == {"grid_search"}:
            grids.append((path, choice(node["grid_search"]).grid()))
        elif isinstance(node, (Mapping, list, tuple)):
            for key, inner in node.items() if isinstance(node, Mapping) else enumerate(node):
                walk(inner, (*path, key))
        else:
            constants.append((path, node))

    walk(spec, ())
    grids.sort(key=lambda entry: entry[0])
    return constants, domains, grids


def assign_value(spec: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set what is at a path of a nested config."""
    for key in path[:-1]:
        spec = spec[key]
    spec[path[-1]] = value


def resource_dict_to_pg_factory(spec: Mapping[str, float] | None = None) -> Any:
    """Return the resources of ``{"cpu": 2, "gpu": 1}`` as a `PlacementGroupFactory` of one bundle."""
    from trialpod.tune.placement_groups import PlacementGroupFactory

    names = {"cpu": "CPU", "gpu": "GPU"}
    return PlacementGroupFactory([{names.get(name, name): amount for name, amount in (spec or {"cpu": 1}).items()}])


def unflatten_list_dict(dt: Mapping[str, Any], delimiter: str = "/") -> Any:
    """Return a flattened dict nested again, with lists where the parts of names are numbers."""
    from trialpod.tune.utils import unflatten_dict

    def lists(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        inner = {key: lists(entry) for key, entry in value.items()}
        if inner and all(str(key).isdigit() for key in inner):
            return [inner[key] for key in sorted(inner, key=int)]
        return inner

    return lists(unflatten_dict(dt, delimiter))


def retry_fn(
    fn: Callable[[], Any],
    exception_type: Any = Exception,
    num_retries: int = 3,
    sleep_time: float = 1,
    timeout: float | None = None,
) -> bool:
    """Call a function until it neither raises nor takes too long, and return whether it did.

    Args:
        fn: called in a thread.
        exception_type: what is caught and logged.
        num_retries: the most calls.
        sleep_time: seconds after one that failed.
        timeout: seconds for one call; None waits without limit.
    """
    for _ in range(num_retries):
        succeeded = threading.Event()

        def call(succeeded: threading.Event = succeeded) -> None:
            try:
                fn()
            except exception_type as error:
                log.warning("%s", error)
            else:
                succeeded.set()

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(timeout)
        if succeeded.is_set():
            return True
        time.sleep(sleep_time)
    return False


class SafeFallbackEncoder(json.JSONEncoder):
    """Writes NumPy's values as numbers and lists, and what JSON does not know as its text."""

    def __init__(self, nan_str: str = "null", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nan_str = nan_str

    def default(self, value: Any) -> Any:
        """Return the form of a value that JSON does not know."""
        if is_nan(value) and getattr(value, "ndim", 0) == 0:
            return self.nan_str
        plain = getattr(value, "tolist", None)
        return plain() if callable(plain) and type(value).__module__ == "numpy" else str(value)


class ExportFormat:
    """The formats that `Trainable.export_model` knows by name."""

    CHECKPOINT = "checkpoint"
    MODEL = "model"
    ONNX = "onnx"
    H5 = "h5"

    @staticmethod
    def validate(formats: list[str]) -> None:
        """Bring names of formats into their usual form, in place.

        Raises:
            InvalidInputError: one is unknown.
        """
        from trialpod.tune.trainable.trainable import checked_formats

        formats[:] = checked_formats(formats)


def json_to_resources(data: Any) -> Any:
    """Return resources from JSON, or a dict as it is made from it; None for none.

    Raises:
        InvalidInputError: there is an unknown field.
    """
    from trialpod.tune.placement_groups import Resources

    if data is None or data == "null":
        return None
    return Resources(**(json.loads(data) if isinstance(data, str) else dict(data)))


def resources_to_json(resources: Any) -> dict[str, Any] | None:
    """Return resources as the dict that `json_to_resources` reads; None for none."""
    if resources is None:
        return None
    from trialpod.tune.placement_groups import to_resources

    return dict(to_resources(resources, "resources_to_json"))
