"""How deciding code travels from a script to its decider: what the `Tuner` was given, pickled in a packed file.

Invariants: only a decider opens the pickle. Its header can be read anywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import random
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from trialpod.errors import TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.packed import pack, read_packed, version_mismatch
from trialpod.protocol.values import ParamsEncoder, ValueStore
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.plugins.state import allow_pickles
from trialpod.tune.search.sample import Categorical, Constant, Domain, Float, Integer
from trialpod.tune.search.spaces.numpy_draws import script_seeded_numpy, set_global, text_of_global
from trialpod.tune.shipping.package import pickled
from trialpod.tune.shipping.stored_objects import ValueFiles
from trialpod.tune.stopper import Stopper
from trialpod_operator.experiment.own_code import is_manifest, plan_of_packed
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_request
from trialpod_operator.experiment.warm_start import EarlierInDecider, keeping

_SEED_BITS = 32


def deciding_parts(request: ExperimentRequest) -> list[str]:
    """Return what a request decides by, in words: "the scheduler MyScheduler"."""
    found = []
    if request.search_alg is not None:
        found.append(f"the search algorithm {_name(request.search_alg)}")
    if request.scheduler is not None:
        found.append(f"the scheduler {_name(request.scheduler)}")
    stop = request.stop
    for part in [] if stop is None or isinstance(stop, dict) else stop if isinstance(stop, list) else [stop]:
        if isinstance(part, Stopper):
            found.append(f"the stopper {_name(part)}")
        else:
            found.append(f"the stop function {getattr(part, '__qualname__', type(part).__name__)}")
    found += [f"sample_from in param_space {path}".strip() for path in functions_in(request.param_space)]
    return found


def _name(plug_in: object) -> str:
    inner = getattr(plug_in, "searcher", None)
    return type(plug_in if inner is None else inner).__name__


def functions_in(value: object, path: str = "") -> list[str]:
    """Return where a part of a search space has a distribution that is a user's own: tune.sample_from, or a class."""
    if isinstance(value, Domain):
        if not isinstance(value, (Float, Integer, Categorical, Constant)):
            return [path]
        return functions_in(list(getattr(value, "categories", ())), path)
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in functions_in(item, f"{path}/{key}".lstrip("/"))]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in functions_in(item, path)]
    return []


def pack_code(request: ExperimentRequest, values: ValueFiles | None = None) -> bytes:
    """Return the contents of the file for a decider of this request.

    Args:
        request: what the `Tuner` was given.
        values: stores large values of the search space, to which the file then refers.

    Raises:
        NotPicklableError: something in it cannot be pickled.
    """
    import cloudpickle

    kept = dataclasses.replace(
        request,
        param_space=request.param_space if values is None else values.referring(request.param_space),
        storage_path="/",
        storage_uri="",
        trainable=TrainableRef(entrypoint="decider:decider"),
        command=None,
        resources_fn=None,
        callbacks=[],
        progress_reporter=None,
        trial_name=None,
        trial_dirname=None,
    )
    what = f"the deciding code ({', '.join(deciding_parts(request))})"
    body = pickled(kept, what, own_code=True)
    generators = _generators() if request.seed is None else None
    return pack(body, name="the deciding code", cloudpickle=cloudpickle.__version__, generators=generators)


def _generators() -> dict[str, Any]:
    """Return where the script's own generators are; NumPy's only when the script has seeded it."""
    found: dict[str, Any] = {"python": random.getstate()}
    if script_seeded_numpy():
        found["numpy"] = text_of_global()
    return found


def restore_generators(code: bytes, seed: int) -> None:
    """Have Python's and NumPy's global generators continue where the script's were, or seed them."""
    seed_generators(seed)
    if is_manifest(code):
        return
    found = read_packed(code)[0].get("generators") or {}
    if "python" in found:
        version, internal, gauss = found["python"]
        random.setstate((version, tuple(internal), gauss))
    if "numpy" in found and find_spec("numpy") is not None:
        set_global(found["numpy"])


def checksum(code: bytes) -> str:
    """Return the checksum of a file's contents."""
    return hashlib.sha256(code).hexdigest()


def seed_generators(seed: int) -> None:
    """Seed Python's and NumPy's global generators, from which a user's code may draw."""
    random.seed(seed % 2**_SEED_BITS)
    if find_spec("numpy") is not None:
        import numpy as np

        np.random.seed(seed % 2**_SEED_BITS)


def load_plan(
    code: bytes, seed: int, name: str, values: ValueStore | None = None, lessons: list[list[Any]] | None = None
) -> ExperimentPlan:
    """Return the plan with the user's own algorithms.

    Args:
        code: the contents of the file.
        seed: of the experiment.
        name: of the experiment.
        values: the large ones that configs refer to.
        lessons: of earlier experiments, which the operator has read; None = none.

    Raises:
        TrainableError: it cannot be loaded here.
    """
    if is_manifest(code):
        return plan_of_packed(code, seed, lessons or [])
    header, body = read_packed(code)
    if (mismatch := version_mismatch(header)) is not None:
        raise TrainableError(mismatch.replace("or name the Trainable by an entry point ('module:attribute') instead",
                                              "or run the script with the Python of the image"))  # fmt: skip
    allow_pickles()
    try:
        request = pickle.loads(body)
    except ImportError as error:
        raise TrainableError(
            f"the deciding code cannot be loaded in this image: {type(error).__name__}: {error}; "
            "install what it imports in the image, or import it where it is used"
        ) from error
    except Exception as error:
        raise TrainableError(
            f"the deciding code cannot be loaded in this image: {type(error).__name__}: {error}"
        ) from error
    assert isinstance(request, ExperimentRequest)
    # Of a script's own search the operator knows nothing, so it has read nothing for it.
    kept = keeping(lessons or []) if request.algorithm else {}
    plan = plan_from_request(request, {"seed": seed, "name": name, **kept}, EarlierInDecider())
    return dataclasses.replace(plan, encode_params=ParamsEncoder(values).encode)
