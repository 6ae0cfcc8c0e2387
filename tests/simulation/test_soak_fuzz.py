"""A soak's fuzz tests: what fails is told with the command that shows it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_fuzz import Fuzzing

pytestmark = [pytest.mark.slow, pytest.mark.once]

FAILING = """
from hypothesis import given
from hypothesis import strategies as st

@given(st.integers())
def test_it(number):
    assert number < 1000
"""


def test_a_failure_is_told_with_the_command_that_shows_it_again(tmp_path: Path) -> None:
    module = tmp_path / "test_fuzz_it.py"
    module.write_text(FAILING)
    found = Fuzzing(7, [module]).turn()
    assert found is not None
    assert found.failed
    assert "number=1000" in found.output
    assert found.command.endswith(f"--hypothesis-seed=7 {module}")


def test_fuzzing_takes_its_share_of_the_time(tmp_path: Path) -> None:
    module = tmp_path / "test_fuzz_it.py"
    module.write_text("def test_it(): pass")
    fuzzing = Fuzzing(7, [module], share=0.01)
    first, second = fuzzing.turn(), fuzzing.turn()
    assert first is not None
    assert not first.failed
    assert second is None
