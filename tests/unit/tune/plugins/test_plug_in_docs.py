"""What docs/plug-ins.md shows works unchanged: its classes hold to the contracts that it gives them."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[4] / "docs" / "plug-ins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

for block in BLOCKS:
    exec(compile(block, "docs/plug-ins.md", "exec"), globals())

del SchedulerContract, SearcherContract  # type: ignore[name-defined]  # noqa: F821  # pytest would take them for tests


def test_there_is_a_suite_for_each_kind() -> None:
    assert {"TestStopAbove", "TestNearTheBest"} <= set(globals())
