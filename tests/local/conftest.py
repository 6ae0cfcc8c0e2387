"""Folders to run real `trialpod` commands in, cleaned of every process afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_shell import WARM, Shell


@pytest.fixture(scope="session", autouse=True)
def _warm_commands() -> Iterator[None]:
    """What commands are forked from ends with the tests."""
    yield
    WARM.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder to run commands in."""
    folder = tmp_path / "work"
    folder.mkdir()
    made = Shell(folder)
    yield made
    made.cleanup()


@pytest.fixture(scope="module")
def module_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder that all tests of a module share."""
    made = Shell(tmp_path_factory.mktemp("work"))
    yield made
    made.cleanup()
