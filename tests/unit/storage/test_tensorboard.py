from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.storage.tensorboard import EventEncoder, crc32c, end_of_last_record, file_name
from trialpod.storage.trial_log import EventFile, TrialLog


def slow_crc32c(data: bytes) -> int:
    """The checksum by its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


ENCODER = EventEncoder(slow_crc32c)
NAME = "events.out.tfevents.1700000000.box"
FILE = EventFile(NAME, 1.5, ENCODER)
STATIC = {"trial_id": "a", "pid": 7, "config": {"lr": 0.1}}


def result(step: int, **metrics: Any) -> dict[str, Any]:
    return {**metrics, "training_iteration": step, "timestamp": 1_700_000_000 + step, "done": False}


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + length])
        at += length + 16
    assert at == len(data)
    return found


def steps(path: Path) -> list[int]:
    """Return the steps (below 128) behind the header."""
    version, *events = records(path.read_bytes())
    assert version.endswith(b"brain.Event:2")
    return [event[10] for event in events]


@pytest.mark.parametrize(
    ("value", "shown"), [(10**400, float("inf")), (-(10**400), float("-inf")), (1e300, float("inf"))]
)
def test_a_number_beyond_any_float_is_infinite(value: float, shown: float) -> None:
    [event] = records(ENCODER.encode({"loss": value}))
    assert struct.unpack("<f", event[-4:]) == (shown,)


def test_the_bytes_are_those_that_tensorboard_reads() -> None:
    # TensorBoard 2.21 reads these as: wall_time 1.5, file_version brain.Event:2; then wall_time 1700000000, step 300,
    # ray/tune/loss = 0.25, ray/tune/group/acc = 3. Its own writer makes the same bytes.
    assert (
        ENCODER.header(1.5).hex()
        == "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
    )
    given_result = {
        "loss": 0.25,
        "group/acc": 3,
        "flag": True,
        "done": False,
        "nan": float("nan"),
        "date": "x",
        "training_iteration": 300,
        "timestamp": 1_700_000_000,
        "time_total_s": 2.0,
        "pid": 4,
    }
    assert ENCODER.encode(given_result).hex() == (
        "3f00000000000000516576610900000040fc54d94110ac022a310a140a0d7261792f74756e652f6c6f7373150000803e"
        "0a190a127261792f74756e652f67726f75702f61636315000040408f0c54a9"
    )


def test_the_installed_checksum_is_the_right_one() -> None:
    pytest.importorskip("google_crc32c")
    checksum = crc32c()
    if checksum is None:
        pytest.skip("google-crc32c has no machine code here")
    for data in (b"", b"123456789", bytes(range(256)) * 5):
        assert checksum(data) == slow_crc32c(data)


def test_timesteps_are_the_step_when_they_are_reported() -> None:
    (event,) = records(ENCODER.encode(result(3, loss=1.0, timesteps_total=90)))
    assert event[9:11] == bytes([0x10, 90])


def test_a_result_without_numbers_is_left_out() -> None:
    assert ENCODER.encode({"training_iteration": 1, "flag": True, "text": "x", "nan": float("nan")}) == b""


@given(st.dictionaries(st.text(max_size=5), st.floats() | st.integers() | st.booleans() | st.text() | st.none()))
def test_whatever_is_reported_becomes_one_whole_record_or_none(reported: dict[str, Any]) -> None:
    data = ENCODER.encode(reported)
    assert end_of_last_record(data) == len(data)
    assert len(records(data)) <= 1
    assert end_of_last_record(data[:-1]) == 0


def test_a_name_has_the_time_and_the_host() -> None:
    assert file_name(1_700_000_000.9, "my box/1") == "events.out.tfevents.1700000000.my_box_1"


def test_a_trial_log_writes_each_result_once_across_resumes(tmp_path: Path) -> None:
    log = TrialLog(tmp_path, STATIC, events=FILE)
    log.append([result(1, loss=1.0), result(2, loss=0.5)])
    offsets = log.offsets()
    log.append([result(3, loss=0.4)])
    log.flush()
    assert steps(tmp_path / NAME) == [1, 2, 3]
    assert offsets[NAME] < (tmp_path / NAME).stat().st_size

    again = TrialLog.resume(tmp_path, STATIC, offsets, FILE)
    again.append([result(3, loss=0.4), result(4, loss=0.3)])
    again.flush()
    assert steps(tmp_path / NAME) == [1, 2, 3, 4]
    assert again.warnings == []


def test_cut_event_file_resumes_after_its_last_whole_record(tmp_path: Path) -> None:
    log = TrialLog(tmp_path, STATIC, events=FILE)
    log.append([result(1, loss=1.0), result(2, loss=0.5)])
    offsets = log.offsets()
    with open(tmp_path / NAME, "r+b") as file:
        file.truncate(offsets[NAME] - 3)
    again = TrialLog.resume(tmp_path, STATIC, offsets, FILE)
    again.append([result(3, loss=0.4)])
    again.flush()
    assert steps(tmp_path / NAME) == [1, 3]
    assert "after its last complete record" in again.warnings[0]


def test_without_an_encoder_there_is_no_event_file(tmp_path: Path) -> None:
    log = TrialLog(tmp_path, STATIC)
    log.append([result(1, loss=1.0)])
    assert set(log.offsets()) == {"result.json", "progress.csv"}
    assert not list(tmp_path.glob("events.*"))
