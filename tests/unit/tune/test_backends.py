from __future__ import annotations

from types import SimpleNamespace

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.backends import get_backend


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
