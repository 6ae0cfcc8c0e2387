"""What a process that was forked from others' imports does before its trial begins."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from trialpod.runner.fork_server.child import _prepare
from trialpod.runner.fork_server.protocol import Spawn


def test_torch_draws_other_numbers_in_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[str] = []
    generator = SimpleNamespace(seed=lambda: seeded.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator))
    _prepare(Spawn(key="1", runner="r", address="unix:/nowhere", experiment="digits"))
    assert seeded == ["torch"]
