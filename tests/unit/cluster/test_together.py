"""Several requests at once."""

from __future__ import annotations

import asyncio

import pytest

from trialpod_operator.cluster.kube import gather_all


def test_the_results_come_in_the_order_of_the_requests() -> None:
    async def main() -> list[int]:
        first = asyncio.Event()

        async def late() -> int:
            await first.wait()
            return 1

        async def early() -> int:
            first.set()
            return 2

        return await gather_all(late(), early())

    assert asyncio.run(main()) == [1, 2]


def test_a_failure_is_raised_when_the_others_have_ended() -> None:
    ended = []

    async def main() -> None:
        failed = asyncio.Event()

        async def fails() -> None:
            failed.set()
            raise ValueError("no")

        async def continues() -> None:
            await failed.wait()
            for _ in range(3):
                await asyncio.sleep(0)
            ended.append(True)

        await gather_all(fails(), continues())

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())
    assert ended == [True]
