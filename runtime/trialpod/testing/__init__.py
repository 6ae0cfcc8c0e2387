"""Test kits for plug-ins: subclass one in a test module, say how to make the object, and run pytest.

`SchedulerContract` is for schedulers (`trialpod.schedulers`), `SearcherContract` for search algorithms
(`trialpod.searchers`). Nothing here is imported by the rest of trialpod.
"""

from __future__ import annotations

from trialpod.testing.scheduler_contract import SchedulerContract
from trialpod.testing.searchers import SearcherContract

__all__ = ["SchedulerContract", "SearcherContract"]
