"""Loads a Python file that is in no package and on no path, such as a tool or a benchmark, for the tests of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(file: Path, name: str) -> ModuleType:
    """Return the module of a file, which stays known by this name: its dataclasses and pickles need that."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
