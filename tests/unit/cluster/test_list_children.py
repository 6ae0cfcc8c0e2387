"""What is read of an experiment's trials and pods when it is opened: only what the watches have not shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import virtual_time
from fake_api import PAGE, FakeApi, FakeKube

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names, services
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.services import Services

KEY = "team/digits"
LABELS = {names.MANAGED_BY_LABEL: names.MANAGER, names.EXPERIMENT_LABEL: "digits"}


def pod(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"digits-{number}", "labels": LABELS}, "spec": {"containers": []}}


class Opening:
    """An operator whose watch has shown some pods when an experiment is opened."""

    def __init__(self, shown: int) -> None:
        self.api = FakeApi()
        self.kube = FakeKube(self.api)
        self.cache = ObjectCache()
        self.shown = shown
        self.services = Services(self.kube, OperatorOptions(), self.cache, *[lambda _: None] * 6)

    async def make(self, count: int) -> None:
        for number in range(count):
            made = await self.kube.create(paths.pods("team"), pod(number))
            if number < self.shown:
                self.cache.update_pod(made, deleted=False)

    async def open(self) -> dict[str, int]:
        before = self.api.counts.copy()
        await self.services.list_children(KEY)
        return {call: count - before[call] for call, count in self.api.counts.items() if count > before[call]}

    def phases(self) -> dict[str, str]:
        return {each["metadata"]["name"]: each["status"]["phase"] for each in self.cache.pods(KEY)}


def opened(
    shown: int, made: int, change: Callable[[FakeApi], None] = lambda _: None
) -> tuple[Opening, dict[str, int]]:
    opening, counts = Opening(shown), dict[str, int]()

    async def scenario() -> None:
        await opening.make(made)
        change(opening.api)
        counts.update(await opening.open())

    virtual_time.run(scenario)
    return opening, counts


def pages(count: int) -> int:
    return math.ceil(count / PAGE)


def test_what_the_watches_have_shown_is_not_read_again() -> None:
    opening, counts = opened(3, 3)
    assert counts == {"GET pods": 1, "GET tunetrials": 1}
    assert len(opening.phases()) == 3


@pytest.mark.parametrize(("shown", "made", "reads"), [(2, 4, 2), (0, 3, 3)])
def test_what_they_have_not_is_read_one_by_one(shown: int, made: int, reads: int) -> None:
    opening, counts = opened(shown, made)
    assert counts == {"GET pods": pages(made) + reads, "GET tunetrials": 1}
    assert len(opening.phases()) == made


def test_many_of_these_are_read_by_a_list() -> None:
    opening, counts = opened(0, services.MAX_SINGLE_READS + 1)
    assert counts == {"GET pods": 2 * pages(services.MAX_SINGLE_READS + 1), "GET tunetrials": 1}
    assert len(opening.phases()) == services.MAX_SINGLE_READS + 1


def test_what_has_changed_since_is_read() -> None:
    def change(api: FakeApi) -> None:
        item = api.get("pods", "digits-1")
        assert item is not None
        api.edit(item, lambda each: each["status"].update(phase="Failed"))

    opening, counts = opened(3, 3, change)
    assert counts == {"GET pods": 2, "GET tunetrials": 1}
    assert opening.phases() == {"digits-0": "Pending", "digits-1": "Failed", "digits-2": "Pending"}


def test_what_is_gone_is_dropped() -> None:
    def change(api: FakeApi) -> None:
        item = api.get("pods", "digits-1")
        assert item is not None
        api.remove(item)

    opening, _ = opened(3, 3, change)
    assert set(opening.phases()) == {"digits-0", "digits-2"}
