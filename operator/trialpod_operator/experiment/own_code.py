"""Algorithms of the user's own that a manifest names by entry points, in `spec.decider`.

Invariants: only a decider's process, or the user's own on one machine, imports them; the operator passes the manifest
on. What has no class of its own in `spec.decider` is what the manifest says otherwise.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trialpod import variables
from trialpod.compat.activation import activate
from trialpod.errors import TrainableError, TrialpodError
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.failure import one_line
from trialpod.runner.load import load_entrypoint
from trialpod.tune.plugins.state import allow_pickles
from trialpod.tune.schedulers import TrialScheduler
from trialpod.tune.search import SearchAlgorithm, Searcher
from trialpod.tune.stopper import CombinedStopper, FunctionStopper, Stopper
from trialpod_operator.api.models import DeciderSpec, OwnComponent, TuneExperiment
from trialpod_operator.experiment.plan import ExperimentPlan, make_search, plan_from_manifest
from trialpod_operator.experiment.warm_start import keeping

_MAGIC = b"trialpod manifest\n"


def named_parts(decider: DeciderSpec) -> dict[str, Any]:
    """Return what a decider names, as data."""
    parts = {
        "searchAlgorithm": decider.search_algorithm,
        "scheduler": decider.scheduler,
        "stoppers": decider.stoppers,
    }
    return {name: msgspec.to_builtins(part) for name, part in parts.items() if part}


def pack_manifest(experiment: TuneExperiment) -> bytes:
    """Return what a decider gets in place of pickled code."""
    return _MAGIC + msgspec.json.encode(msgspec.to_builtins(experiment))


def is_manifest(code: bytes) -> bool:
    """Return whether it is what `pack_manifest` returned."""
    return code.startswith(_MAGIC)


def plan_of_packed(code: bytes, seed: int, lessons: list[list[Any]]) -> ExperimentPlan:
    """Return the plan of a packed manifest, with the user's own algorithms.

    Args:
        code: what `pack_manifest` returned.
        seed: of the experiment.
        lessons: of earlier experiments; the operator has read them.

    Raises:
        TrainableError: one of them cannot be loaded here.
    """
    experiment = msgspec.json.decode(code.removeprefix(_MAGIC), type=TuneExperiment)
    activate(os.environ.get(variables.COMPAT, ""))
    plan = plan_from_manifest(
        experiment,
        Path("/"),
        {"seed": seed, **keeping(lessons)},
        trainable=TrainableRef(entrypoint="decider:none"),
    )
    return with_own_code(plan, experiment, seed, [])


def with_own_code(plan: ExperimentPlan, experiment: TuneExperiment, seed: int, folders: list[str]) -> ExperimentPlan:
    """Return a plan in which the algorithms that the manifest names as its own decide.

    Args:
        plan: of the manifest, without them.
        experiment: the manifest, with `spec.decider`.
        seed: of the experiment.
        folders: where their modules may be, besides what can be imported anyway.

    Raises:
        TrainableError: one of them cannot be imported, or is none.
    """
    decider = experiment.spec.decider
    assert decider is not None
    allow_pickles()
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    changes: dict[str, Any] = {}
    if (own := decider.search_algorithm) is not None:
        searcher = _make(
            own, "spec.decider.searchAlgorithm", (SearchAlgorithm, Searcher), "trialpod.tune.search.Searcher", folders
        )
        changes["search"] = _prepared(own, experiment, searcher, seed)
    if (own := decider.scheduler) is not None:
        wanted = "trialpod.tune.schedulers.TrialScheduler"
        changes["scheduler"] = _make(own, "spec.decider.scheduler", (TrialScheduler,), wanted, folders)
    if decider.stoppers:
        stoppers = [_stopper(own, f"spec.decider.stoppers[{at}]", folders) for at, own in enumerate(decider.stoppers)]
        stoppers = [*([plan.stopper] if plan.stopper is not None else []), *stoppers]
        changes["stopper"] = stoppers[0] if len(stoppers) == 1 else CombinedStopper(*stoppers)
    return dataclasses.replace(plan, **changes)


def _load(own: OwnComponent, where: str, folders: list[str]) -> Any:
    try:
        return load_entrypoint(own.entrypoint, folders)
    except TrainableError as error:
        raise TrainableError(f"{where}.entrypoint: {error}") from error


def _call(found: Any, parameters: Mapping[str, Any], where: str, entrypoint: str) -> Any:
    try:
        return found(**parameters)
    except Exception as error:
        given = ", ".join(parameters) or "no parameters"
        raise TrainableError(
            f"{where}: {entrypoint} cannot be made with {given}: {_said(error)}; correct its parameters or its code"
        ) from error


def _said(error: Exception) -> str:
    """Return what an error of the user's code says, with its type and its place in their code."""
    if isinstance(error, TrialpodError):
        return str(error)
    begun = error.__traceback__
    while begun is not None and begun.tb_frame.f_globals.get("__name__", "").startswith("trialpod_operator."):
        begun = begun.tb_next
    return one_line(error.with_traceback(begun))


def _prepared(own: OwnComponent, experiment: TuneExperiment, searcher: object, seed: int) -> SearchAlgorithm:
    try:
        return make_search(experiment.spec, searcher, seed)
    except TrialpodError:
        raise
    except Exception as error:
        raise TrainableError(
            f"spec.decider.searchAlgorithm: {own.entrypoint} cannot take the search space, the metric or the mode: "
            f"{_said(error)}; correct its code"
        ) from error


def _make(own: OwnComponent, where: str, kinds: tuple[type, ...], wanted: str, folders: list[str]) -> Any:
    found = _load(own, where, folders)
    made = _call(found, own.parameters, where, own.entrypoint) if callable(found) else found
    if not isinstance(made, kinds):
        what = f"makes a {type(made).__name__}" if callable(found) else f"is a {type(found).__name__}"
        raise TrainableError(f"{where}.entrypoint: {own.entrypoint} {what}; name a class that derives from {wanted}")
    return made


def _stopper(own: OwnComponent, where: str, folders: list[str]) -> Stopper:
    found = _load(own, where, folders)
    if callable(found) and not isinstance(found, type):
        if own.parameters:
            raise TrainableError(
                f"{where}.parameters: {own.entrypoint} is a function (trial_id, result) and takes none; "
                "name a class, or remove them"
            )
        return FunctionStopper(found)
    made = _call(found, own.parameters, where, own.entrypoint) if callable(found) else found
    if not isinstance(made, Stopper):
        raise TrainableError(
            f"{where}.entrypoint: {own.entrypoint} is neither a function nor a class that derives from "
            "trialpod.tune.Stopper"
        )
    return made
