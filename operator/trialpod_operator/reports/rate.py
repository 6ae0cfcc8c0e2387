"""How much one caller may ask for: token buckets, one pair per caller, for requests and for bytes.

A bucket holds up to `burst` tokens and is refilled at a steady rate; a request that finds it empty learns how long
to wait (the token bucket as an algorithm: RFC 2697's single rate, without colours).

Invariants: memory is bounded by `callers`; what is forgotten first is the caller that was quiet for the longest,
whose buckets have had the longest time to fill up. Full buckets are as good as none, and are not kept. A refused
request takes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A steady rate with bursts.

    Args:
        per_s: tokens per second.
        burst: tokens that a caller may take at once after a long pause.
    """

    per_s: float
    burst: float


class RateLimiter:
    """Judges the requests of many callers.

    Args:
        requests: how many requests.
        size: how many bytes, None for any number.
        clock: monotonic seconds.
        callers: how many are remembered.
    """

    def __init__(
        self,
        requests: Rate,
        size: Rate | None = None,
        *,
        clock: Callable[[], float],
        callers: int = 16_384,
    ) -> None:
        self._requests = requests
        self._size = size
        self._clock = clock
        self._callers = callers
        self._buckets: OrderedDict[Hashable, list[float]] = OrderedDict()  # requests, bytes, time of both

    def take(self, caller: Hashable, size: int = 0) -> float:
        """Count a request; return 0.0 if it may continue, else the seconds after which it may.

        Args:
            caller: the key that is limited.
            size: bytes of the request. One larger than the whole burst passes when the bucket is full.
        """
        now = self._clock()
        requests, bytes_ = self._requests, self._size
        bucket = self._buckets.get(caller)
        if bucket is None:
            while self._buckets and (
                len(self._buckets) >= self._callers or self._is_full(next(iter(self._buckets.values())), now)
            ):
                self._buckets.popitem(last=False)
            bucket = self._buckets[caller] = [requests.burst, bytes_.burst if bytes_ is not None else 0.0, now]
        else:
            self._buckets.move_to_end(caller)
        elapsed = max(0.0, now - bucket[2])
        bucket[2] = now
        bucket[0] = min(requests.burst, bucket[0] + elapsed * requests.per_s)
        wait = (1.0 - bucket[0]) / requests.per_s if bucket[0] < 1.0 else 0.0
        if bytes_ is not None:
            bucket[1] = min(bytes_.burst, bucket[1] + elapsed * bytes_.per_s)
            needed = min(float(size), bytes_.burst)
            if bucket[1] < needed:
                wait = max(wait, (needed - bucket[1]) / bytes_.per_s)
        if wait > 0.0:
            return wait
        bucket[0] -= 1.0
        bucket[1] -= min(size, bytes_.burst) if bytes_ is not None else 0.0
        return 0.0

    def _is_full(self, bucket: list[float], now: float) -> bool:
        elapsed = max(0.0, now - bucket[2])
        size = self._size
        return bucket[0] + elapsed * self._requests.per_s >= self._requests.burst and (
            size is None or bucket[1] + elapsed * size.per_s >= size.burst
        )
