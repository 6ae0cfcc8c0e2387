"""Checks and conversions of single arguments of a `Tuner`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError, WrongTypeError
from trialpod.tune.arguments import unknown_argument
from trialpod.tune.backends import TrialNamer
from trialpod.tune.config import NewTrial, RunConfig, TuneConfig
from trialpod.tune.plugins.goal import introduce_scheduler
from trialpod.tune.search import sample
from trialpod.tune.search.sample import Categorical

if TYPE_CHECKING:
    from trialpod.tune.trial_config import ResumeConfig

_DISTRIBUTIONS: frozenset[Any] = frozenset(
    {
        *(sample.uniform, sample.quniform, sample.loguniform, sample.qloguniform, sample.randn, sample.qrandn),
        *(sample.randint, sample.qrandint, sample.lograndint, sample.qlograndint),
        *(sample.choice, sample.sample_from, sample.grid_search),
    }
)
_HOLDERS = (Mapping, list, tuple, Categorical)

logger = logging.getLogger(__name__)


def checked_space(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a search space as a dict of its own."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"Tuner(param_space={given!r}): must be a dict of parameter names to values and distributions"
        )
    for key in given:
        if not isinstance(key, str):
            raise InvalidInputError(f"Tuner(param_space=...): the key {key!r} is not a string")
    _refuse_loops(given, "param_space", {})
    _refuse_uncalled(given, "param_space")
    return dict(given)


def _refuse_uncalled(node: Any, path: str) -> None:
    """Raise InvalidInputError where a distribution stands without its arguments; it would be a constant."""
    if isinstance(node, FunctionType) and node in _DISTRIBUTIONS:
        raise InvalidInputError(
            f"Tuner(param_space=...): {path} is the function tune.{node.__name__} itself; call it with its "
            f"arguments: tune.{node.__name__}(...)"
        )
    if isinstance(node, Mapping):
        for key, value in node.items():
            _refuse_uncalled(value, f"{path}[{key!r}]")
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            if isinstance(value, (*_HOLDERS, FunctionType)):  # a list may have a million numbers
                _refuse_uncalled(value, f"{path}[{index}]")


def _refuse_loops(node: Any, path: str, above: dict[int, str]) -> None:
    """Raise InvalidInputError when a dict, list or tuple contains itself; `above` has those on the way to `node`."""
    children: Iterable[tuple[Any, Any]]
    if isinstance(node, Mapping):
        children = node.items()
    elif isinstance(node, (list, tuple)):
        children = ((index, item) for index, item in enumerate(node) if isinstance(item, _HOLDERS))
    elif isinstance(node, Categorical):
        return _refuse_loops(node.categories, f"{path}.categories", above)
    else:
        return None
    if id(node) in above:
        raise InvalidInputError(
            f"Tuner(param_space=...): {path} is {above[id(node)]} again: a config cannot contain itself; "
            "put a copy there"
        )
    above[id(node)] = path
    for key, item in children:
        _refuse_loops(item, f"{path}[{key!r}]", above)
    del above[id(node)]
    return None


def _keys(space: Mapping[str, Any], prefix: str = "") -> set[str]:
    keys: set[str] = set()
    for key, value in space.items():
        if isinstance(value, Mapping) and set(value) != {"grid_search"}:
            keys |= _keys(value, f"{prefix}{key}/") or {f"{prefix}{key}"}
        else:
            keys.add(f"{prefix}{key}")
    return keys


def check_same_keys(saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise InvalidInputError unless two search spaces have the same parameters."""
    before, after = _keys(saved), _keys(given)
    if before != after:
        parts = [
            f"{verb} {', '.join(sorted(keys))}"
            for verb, keys in (("missing:", before - after), ("new:", after - before))
            if keys
        ]
        raise InvalidInputError(
            f"Tuner.restore(param_space=...): its keys must be those that the experiment started with; "
            f"{'; '.join(parts)}"
        )


def set_fields(configs: tuple[TuneConfig, RunConfig], values: Mapping[str, Any]) -> None:
    """Set fields of the one or the other config by name.

    Raises:
        UnknownArgumentError: neither has such a field.
    """
    for name, value in values.items():
        config = next((config for config in configs if hasattr(config, name)), None)
        if config is None:
            raise unknown_argument("Tuner(_tuner_kwargs=...)", name, [n for config in configs for n in vars(config)])
        setattr(config, name, value)


def made_scheduler(given: Any) -> Any:
    """Return the scheduler that an object or a name stands for."""
    from trialpod.tune.schedulers.trial_scheduler import TrialScheduler

    if given is None or isinstance(given, TrialScheduler):
        return given
    if isinstance(given, str):
        return _create("schedulers", "create_scheduler", given, "scheduler")
    raise WrongTypeError(
        f"TuneConfig(scheduler={given!r}): must be a TrialScheduler of trialpod.tune.schedulers, its name, or None"
        + ("; pass an object, not the class" if isinstance(given, type) else "")
    )


def made_search_alg(given: Any) -> Any:
    """Return the search algorithm that an object or a name stands for."""
    if isinstance(given, str):
        return _create("search", "create_searcher", given, "search_alg")
    if given is None or (
        not isinstance(given, type) and (hasattr(given, "next_suggestion") or hasattr(given, "suggest"))
    ):
        return given
    raise InvalidInputError(
        f"TuneConfig(search_alg={given!r}): must be a search algorithm of trialpod.tune.search, its name, or None"
        + ("; pass an object, not the class" if isinstance(given, type) else "")
    )


def _create(module: str, function: str, name: str, argument: str) -> Any:
    import importlib

    create = getattr(importlib.import_module(f"trialpod.tune.{module}"), function, None)
    if create is None:
        raise InvalidInputError(
            f"TuneConfig({argument}={name!r}): a name is not supported yet; pass an object of trialpod.tune.{module}"
        )
    return create(name)


def check_scheduler(scheduler: Any, config: TuneConfig) -> None:
    """Raise InvalidInputError when the scheduler and the TuneConfig contradict each other in what to optimise."""
    if scheduler is None:
        return
    # On a copy: the backend must get it as the user made it.
    introduce_scheduler(copy.deepcopy(scheduler), config.metric, config.mode)


def trial_namer(creator: Any, trainable: str, argument: str) -> TrialNamer | None:
    """Return a user's function that names trials in the form that backends call."""
    return None if creator is None else functools.partial(_named, creator, trainable, argument)


def _named(
    creator: Any, trainable: str, argument: str, trial_id: str, experiment_tag: str, config: dict[str, Any]
) -> str:
    name = creator(NewTrial(trial_id, experiment_tag, trainable, config))
    # A name becomes part of a directory's name, where `layout.named_dirname` replaces slashes.
    is_dirname = argument == "trial_dirname_creator"
    forbidden = "\0/" if is_dirname else "\0"
    if isinstance(name, str) and name and not name.startswith(".") and not set(forbidden) & set(name):
        return name
    raise InvalidInputError(
        f"TuneConfig({argument}=...) returned {name!r} for trial {trial_id}: must be a non-empty string "
        f"{'without slashes ' if is_dirname else ''}that does not start with a dot"
    )


def resume_flags(config: ResumeConfig, *, defaults: bool) -> tuple[bool, bool, bool]:
    """Return (resume_unfinished, resume_errored, restart_errored) for a ResumeConfig."""
    from trialpod.tune.trial_config import ResumeConfig, ResumeType

    if not isinstance(config, ResumeConfig):
        raise InvalidInputError(f"resume_config={config!r}: must be a tune.ResumeConfig, not {type(config).__name__}")
    if not defaults:
        raise InvalidInputError(
            "a ResumeConfig is given beside resume_unfinished, resume_errored or restart_errored; give one of the two"
        )
    return (
        config.unfinished is ResumeType.RESUME,
        config.errored is ResumeType.RESUME,
        config.errored is ResumeType.RESTART,
    )


def storable(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Return a RunConfig without the callbacks and the reporter that cannot be pickled, and their names."""
    import cloudpickle

    config = copy.copy(config)
    left_out: list[str] = []

    def keeps(part: Any) -> bool:
        try:
            cloudpickle.dumps(part)
        except Exception as error:  # noqa: BLE001 - user code may raise anything while it is pickled
            left_out.append(type(part).__name__)
            logger.warning(
                "%s is not stored with the experiment, so Tuner.restore will not have it: %s: %s",
                type(part).__name__,
                type(error).__name__,
                error,
            )
            return False
        return True

    if config.callbacks:
        config.callbacks = [callback for callback in config.callbacks if keeps(callback)]
    if config.progress_reporter is not None and not keeps(config.progress_reporter):
        config.progress_reporter = None
    sync = config.sync_config
    if sync is not None and sync.own_syncer is not None and not keeps(sync.own_syncer):
        config.sync_config = dataclasses.replace(sync, syncer="auto")
    return config, left_out
