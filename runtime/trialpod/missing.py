"""Which `pip install` brings a library that is not installed."""

from __future__ import annotations

PLAIN = frozenset({"msgspec", "cloudpickle", "httptools", "minio", "yaml", "rich"})
"""Modules that the plain installation brings; an image of trials may lack the last three."""

EXTRAS = {
    "cryptography": "operator",
    "kopf": "operator",
    "kubernetes": "kubernetes",
    "google_crc32c": "tensorboard",
    "optuna": "optuna",
    "hyperopt": "hyperopt",
    "bayes_opt": "bayesopt",
    "nevergrad": "nevergrad",
    "zoopt": "zoopt",
    "ax": "ax",
    "hpbandster": "bohb",
    "ConfigSpace": "bohb",
    "sklearn": "examples",
    "matplotlib": "plots",
    "starlette": "ui",
    "uvicorn": "ui",
    "optuna_dashboard": "ui-optuna",
    "a2wsgi": "ui-optuna",
    "pyarrow": "parquet",
}
"""Module -> the extra that brings it."""


_DISTRIBUTIONS = {"sklearn": "scikit-learn", "skimage": "scikit-image", "cv2": "opencv-python", "PIL": "Pillow"}
"""Module -> what `pip install` calls it, where that is another name."""


def distribution(module: str) -> str:
    """Return what `pip install` calls the package that brings a module."""
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)


def install_command(module: str) -> str | None:
    """Return the command that installs what brings `module`, or None when trialpod does not use it.

    Args:
        module: the name of a module, as a ModuleNotFoundError has it.
    """
    top = module.partition(".")[0]
    if top in PLAIN:
        return "pip install trialpod"
    return f"pip install 'trialpod[{EXTRAS[top]}]'" if top in EXTRAS else None
