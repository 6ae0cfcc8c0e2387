from __future__ import annotations

from trialpod.protocol.messages import AssignmentRequest
from trialpod_operator.reports.protocol_mismatch import protocol_mismatch


def runner(oldest: int = 0, newest: int = 0, release: str = "") -> AssignmentRequest:
    return AssignmentRequest(runner="a/1", pid=1, hostname="h", oldest=oldest, newest=newest, release=release)


def test_ranges_that_meet_understand_each_other() -> None:
    assert protocol_mismatch(runner(1, 1), 1, 2) == ""
    assert protocol_mismatch(runner(2, 3), 1, 2) == ""
    assert protocol_mismatch(runner(), 1, 2) == ""
    assert protocol_mismatch(runner()) == ""


def test_a_runner_that_is_too_old_is_told_what_to_put_into_the_image() -> None:
    found = protocol_mismatch(runner(1, 1, "0.1.0"), 2, 3, "0.5.0")
    assert found == (
        "the trial's image has trialpod 0.1.0, which speaks version 1 of the report protocol; the operator is "
        'trialpod 0.5.0 and speaks 2 to 3. In the image run: pip install "trialpod==0.5.0", and name the new image '
        "in spec.image"
    )
    assert "an older trialpod" in protocol_mismatch(runner(), 2, 3, "0.5.0")


def test_a_runner_that_is_too_new_is_told_how_to_upgrade_the_operator() -> None:
    found = protocol_mismatch(runner(3, 4, "0.9.0"), 1, 2, "0.5.0")
    assert "helm upgrade trialpod charts/trialpod" in found
    assert "--set image.tag=0.9.0" in found
