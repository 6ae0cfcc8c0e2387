from __future__ import annotations

from trialpod.protocol.messages import PROTOCOL_VERSION, AssignmentRequest
from trialpod_operator.reports.protocol_mismatch import protocol_mismatch


def runner(version: int = PROTOCOL_VERSION, release: str = "") -> AssignmentRequest:
    return AssignmentRequest(runner="a/1", pid=1, hostname="h", version=version, release=release)


class TestProtocolMismatch:
    def test_equal_versions_match(self) -> None:
        assert protocol_mismatch(runner()) is None
        assert protocol_mismatch(runner(3), 3) is None

    def test_older_runner_learns_what_to_install(self) -> None:
        assert protocol_mismatch(runner(1, "0.1.0"), 2, "0.5.0") == (
            "the trial's image has trialpod 0.1.0, which speaks version 1 of the report protocol; the operator is "
            'trialpod 0.5.0 and speaks version 2. In the image run: pip install "trialpod==0.5.0", and name the new '
            "image in spec.image"
        )

    def test_newer_runner_learns_to_upgrade_the_operator(self) -> None:
        found = protocol_mismatch(runner(4, "0.9.0"), 2, "0.5.0")
        assert found is not None
        assert "helm upgrade trialpod charts/trialpod" in found
        assert "--set image.tag=0.9.0" in found
