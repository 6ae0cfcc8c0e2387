"""Loaded by every Python that runs a public script: seeds what draws, and replaces what cannot be had offline."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from collections.abc import Callable
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


def _mnist(_root: str, *, train: bool = True, transform: Any = None, **_: Any) -> Any:
    """Stand for the images that torchvision downloads: 800 and 300 of them, brighter where their class says."""
    import torch
    from torch.utils.data import Dataset
    from torchvision.transforms.functional import to_pil_image

    count = 800 if train else 300
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.rand((count, 1, 28, 28), generator=generator) / 2
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 2 * label : 2 * label + 8, 4:24] += 0.5

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, at: int) -> tuple[Any, int]:
            image = to_pil_image(images[at])
            return (image if transform is None else transform(image)), int(labels[at])

    return Images()


def _seed_torch(module: types.ModuleType) -> None:
    module.manual_seed(7)


def _replace(name: str, value: Any) -> Callable[[types.ModuleType], None]:
    return lambda module: vars(module).__setitem__(name, value)


_THEN: dict[str, Callable[[types.ModuleType], None]] = {
    "sklearn.datasets": _replace("fetch_covtype", _covtype),
    "torch": _seed_torch,
    "torchvision.datasets": _replace("MNIST", _mnist),
}


class _Finder:
    """Does something as soon as a module has been imported."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Load the real module, then do what is to be done with it."""
        then = _THEN.pop(name, None)
        if then is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
