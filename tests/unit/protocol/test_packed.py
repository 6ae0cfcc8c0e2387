from __future__ import annotations

import pickle
import sys

import pytest

from trialpod.errors import TrainableError
from trialpod.protocol.packed import pack, read_packed, version_mismatch


def test_what_was_packed_is_read_back() -> None:
    body = pickle.dumps({"a": b"\n\n"})
    header, data = read_packed(pack(body, name="train", cloudpickle="3.1.2"))
    assert data == body
    assert header == {
        "format": 1,
        "python": "{}.{}.{}".format(*sys.version_info),
        "cloudpickle": "3.1.2",
        "name": "train",
    }


@pytest.mark.parametrize("data", [b"", b"\x80\x05", pickle.dumps([1, 2]), b"[]\nxx"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(TrainableError, match="not a packed Trainable"):
        read_packed(data)


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(TrainableError, match=r"has format version 2.*upgrade trialpod"):
        read_packed(b'{"format": 2}\nxxx')


@pytest.mark.parametrize("data", [b'{"format": 1}', b'{"format": 1}\n'])
def test_a_file_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(TrainableError, match="cut off"):
        read_packed(data)


def test_only_another_minor_version_of_python_is_a_mismatch() -> None:
    minor = "{}.{}".format(*sys.version_info)
    assert version_mismatch({"python": f"{minor}.99", "name": "train"}) is None
    assert "packed by Python 3.1.0" in (version_mismatch({"python": "3.1.0", "name": "train"}) or "")
