"""What callbacks have stored is theirs again in the next run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_existing import request

from trialpod.tune import Callback
from trialpod_operator.local.backend import _callbacks


class Counter(Callback):
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_other_log_files_change_no_callbacks_place(tmp_path: Path) -> None:
    before = _callbacks(request(callbacks=[Counter(3)]), tmp_path)
    counter = Counter()
    after = _callbacks(request(callbacks=[counter], log_files=("out", "err")), tmp_path)
    assert before is not None
    assert after is not None
    after._hooks.set_state(before._hooks.get_state())
    assert counter.count == 3
