from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.backends import get_backend, local_directory


def test_an_unknown_backend_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInputError, match="no backend 'locall'; did you mean 'local'"):
        get_backend("locall")


def test_variable_names_the_backend() -> None:
    with pytest.raises(InvalidInputError, match=r"'mars' \(from the variable TRIALPOD_BACKEND\)"):
        get_backend(environ={"TRIALPOD_BACKEND": "mars"})


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def load() -> None:
        raise ModuleNotFoundError("No module named 'httptools'", name="httptools")

    point = SimpleNamespace(name="local", load=load)
    monkeypatch.setattr(metadata, "entry_points", lambda group: (point,))
    with pytest.raises(InvalidInputError, match=r"'httptools'.*pip install trialpod$"):
        get_backend("local", environ={})


def test_storage_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert local_directory("~/x") == "/home/someone/x"
    assert local_directory("file:///data/x") == "/data/x"
    assert local_directory("x") == os.path.join(os.getcwd(), "x")
    with pytest.raises(InvalidInputError, match="s3://bucket/x"):
        local_directory("s3://bucket/x")
