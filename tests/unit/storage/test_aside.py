"""Experiments in a bucket that make room for new ones of their name."""

from __future__ import annotations

import pytest
from memory_storage import MemoryStorage, unavailable

from trialpod.storage.aside import move_aside_in_storage
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.layout import EXPERIMENT_KEY


def test_a_copy_that_fails_is_named_and_leaves_nothing() -> None:
    bucket = MemoryStorage()
    experiment = bucket.sub("digits")
    experiment.write(EXPERIMENT_KEY, b"{}")
    for number in range(4):
        experiment.write(f"trial/checkpoint_{number}", b"weights")
    before = dict(bucket.values)

    def fail(name: str, key: str) -> None:
        if name == "copy" and key.endswith("checkpoint_3"):
            raise unavailable()

    parent = experiment.parent()
    parent.before = fail  # type: ignore[attr-defined]
    experiment.parent = lambda: parent  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailableError):
        move_aside_in_storage(experiment)
    assert bucket.values == before
