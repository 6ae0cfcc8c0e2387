"""Whether a runner and this operator speak a common version of the report protocol, and what to do when they do not.

Both sides say a range. A runner of a release from before there were ranges speaks version 1.
"""

from __future__ import annotations

from trialpod import __version__
from trialpod.protocol.messages import OLDEST_PROTOCOL, PROTOCOL_VERSION, AssignmentRequest


def protocol_mismatch(
    request: AssignmentRequest,
    oldest: int = OLDEST_PROTOCOL,
    newest: int = PROTOCOL_VERSION,
    release: str = __version__,
) -> str:
    """Return "" when they understand each other, else why not, with the remedy.

    Args:
        request: the runner's first.
        oldest: version that is spoken here.
        newest: version that is spoken here.
        release: of the trialpod that runs here.
    """
    theirs = request.oldest or 1, request.newest or 1
    if theirs[0] <= newest and theirs[1] >= oldest:
        return ""
    whose = f"trialpod {request.release}" if request.release else "an older trialpod"
    told = (
        f"the trial's image has {whose}, which speaks version {_range(*theirs)} of the report protocol; the operator "
        f"is trialpod {release} and speaks {_range(oldest, newest)}"
    )
    if theirs[1] < oldest:
        return f'{told}. In the image run: pip install "trialpod=={release}", and name the new image in spec.image'
    newer = request.release or "the newer release"
    return (
        f"{told}. Upgrade the operator: helm upgrade trialpod charts/trialpod --namespace trialpod-system "
        f'--reuse-values --set image.tag={newer}; or in the image run: pip install "trialpod=={release}"'
    )


def _range(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
