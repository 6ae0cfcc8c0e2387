"""How an attempt gets its code and parameters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from test_attempt import Link, attempt

from trialpod import variables
from trialpod.runner import main
from trialpod.storage.base import StorageDeniedError, StorageUnavailableError


def execute(folder: Path, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> tuple[Any, int]:
    """Run an attempt whose code cannot be loaded at first; return its end, and how often it was tried."""
    monkeypatch.chdir(folder)
    for variable in (variables.ORIG_WORKING_DIR, variables.RAY_ORIG_WORKING_DIR):
        monkeypatch.setenv(variable, str(folder))  # which an attempt sets for good
    monkeypatch.setattr(sys, "path", list(sys.path))
    waiting, tried = list(errors), [0]

    def load(*_given: Any) -> Any:
        tried[0] += 1
        if waiting:
            raise waiting.pop(0)
        return lambda config: None

    monkeypatch.setattr(main, "load_trainable", load)
    made = attempt(Link(), folder / "trial")
    unused: Any = None
    return main._Process(unused, unused, None, restarts=False)._execute(made.assignment, made), tried[0]


def test_an_outage_of_the_storage_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = StorageUnavailableError("no answer")
    end, tried = execute(tmp_path, monkeypatch, away, away)
    assert (end.cause, tried) == ("completed", 3)


def test_a_denied_access_to_the_code_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageDeniedError):
        execute(tmp_path, monkeypatch, StorageDeniedError("denied"))
