"""Whether a runner speaks this operator's version of the report protocol, and what to do when it does not."""

from __future__ import annotations

from trialpod import __version__
from trialpod.protocol.messages import PROTOCOL_VERSION, AssignmentRequest
from trialpod_operator.experiment.decisions.messages import DecisionRequest


def protocol_mismatch(
    request: AssignmentRequest | DecisionRequest, version: int = PROTOCOL_VERSION, release: str = __version__
) -> str | None:
    """Return why a runner cannot be understood, with the remedy; None when it can.

    Args:
        request: the runner's first.
        version: of the protocol that is spoken here.
        release: of the trialpod that runs here.
    """
    if request.version == version:
        return None
    whose = f"trialpod {request.release}" if request.release else "another trialpod"
    problem = (
        f"the trial's image has {whose}, which speaks version {request.version} of the report protocol; the operator "
        f"is trialpod {release} and speaks version {version}"
    )
    same = f'in the image run: pip install "trialpod=={release}", and name the new image in spec.image'
    if request.version < version:
        return f"{problem}. {same[0].upper()}{same[1:]}"
    newer = request.release or "the newer release"
    return (
        f"{problem}. Upgrade the operator: helm upgrade trialpod charts/trialpod --namespace trialpod-system "
        f"--reset-then-reuse-values --set image.tag={newer}; or {same}"
    )
