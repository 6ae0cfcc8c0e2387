"""What goes wrong with the bucket, for all its users."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim_plan import Fault


class StoreFaults:
    """Lets the bucket of a world be slow, fail, or do what it was asked without saying so."""

    world: Any

    async def _store_slow(self, fault: Fault) -> None:
        self.world.kernel.counts["store slow"] += 1
        self.world.weather.latency_s = random.Random(fault.x).choice([0.2, 2.0, 8.0])
        await asyncio.sleep(fault.for_s)
        self.world.weather.latency_s = 0.01

    async def _store_failing(self, fault: Fault) -> None:
        self.world.weather.failing = 0.1 + 0.5 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.weather.failing = 0.0

    async def _store_answers_lost(self, fault: Fault) -> None:
        self.world.weather.unknown = 0.1 + 0.5 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.weather.unknown = 0.0

    async def _store_writes_repeated(self, fault: Fault) -> None:
        self.world.weather.retried = 0.2 + 0.7 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.weather.retried = 0.0

    async def _store_away(self, fault: Fault) -> None:
        self.world.weather.away = True
        await asyncio.sleep(fault.for_s)
        self.world.weather.away = False
