"""The large values of configs that a decider reads through the operator, since it has no access to the storage."""

from __future__ import annotations

import asyncio
import re

from trialpod.errors import StorageError
from trialpod.storage.base import StorageUnavailableError
from trialpod_operator.experiment.decisions.messages import VALUE_PART_BYTES, DecisionAnswer, DecisionRequest
from trialpod_operator.experiment.plan import DecidedElsewhere

_NAME = re.compile(r"[0-9a-f]{64}\.value")
RETRY_S = 1.0
MAX_TRIES = 30


async def read_part(decided: DecidedElsewhere, session: int, request: DecisionRequest) -> DecisionAnswer:
    """Answer with a part of a stored value, or why there is none; wait while the storage cannot be reached."""
    read = decided.read_value
    if read is None or _NAME.fullmatch(request.value) is None or request.value_start < 0:
        return DecisionAnswer(session=session, value_problem=f"there is no value {request.value[:80]!r} here")
    loop = asyncio.get_running_loop()
    for tried in range(1, MAX_TRIES + 1):
        try:
            part = await loop.run_in_executor(None, read, request.value, request.value_start, VALUE_PART_BYTES + 1)
        except StorageUnavailableError as error:
            problem = str(error)
            if tried < MAX_TRIES:
                await asyncio.sleep(RETRY_S)
        except (StorageError, OSError) as error:
            problem = str(error)
            break
        else:
            more = len(part) > VALUE_PART_BYTES  # beyond its end nothing can be asked for
            return DecisionAnswer(session=session, value=part[:VALUE_PART_BYTES], value_continues=more)
    message = f"the value {request.value[:12]}... of a config cannot be read: {problem}; run the script again"
    return DecisionAnswer(session=session, value_problem=message)
