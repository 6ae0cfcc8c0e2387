"""Loaded by every Python that runs a public script: seeds what draws, and replaces what cannot be had offline."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from typing import Any

random.seed(7)
if importlib.util.find_spec("numpy") is not None:
    import numpy as np

    np.random.seed(7)


def _covtype(**_: Any) -> Any:
    """Stand for a data set that scikit-learn downloads."""
    from sklearn.datasets import make_classification
    from sklearn.utils import Bunch

    x, y = make_classification(n_samples=400, n_features=20, n_informative=10, n_classes=4, random_state=1)
    return Bunch(data=x, target=y)


class _Finder:
    """Replaces fetch_covtype as soon as scikit-learn's data sets are imported."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Load the real module, then replace the name in it."""
        if name != "sklearn.datasets":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            vars(module)["fetch_covtype"] = _covtype

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
