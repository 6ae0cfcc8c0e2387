from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path

import pytest

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune import Checkpoint


def test_a_dict_comes_back_from_dict_bytes_directory_and_pickle(tmp_path: Path) -> None:
    made = Checkpoint.from_dict({"step": 3, "weights": [1.0, 2.0]})
    assert made.to_dict() == {"step": 3, "weights": [1.0, 2.0]}
    assert Checkpoint.from_bytes(made.to_bytes()).to_dict() == made.to_dict()
    assert Checkpoint.from_directory(made.to_directory(tmp_path / "c")).to_dict() == made.to_dict()
    assert pickle.loads(pickle.dumps(made)).to_dict() == made.to_dict()


def test_a_directory_becomes_a_dict_and_a_directory_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "model").write_bytes(b"\0weights")
    data = Checkpoint(source).to_dict()
    assert set(data) == {"fs_checkpoint"}
    for copy in (Checkpoint.from_dict(data), Checkpoint.from_bytes(Checkpoint(source).to_bytes())):
        with copy.as_directory() as folder:
            assert Path(folder, "sub", "model").read_bytes() == b"\0weights"
            assert os.listdir(folder) == ["sub"]


def test_directory_of_a_dict_is_lazy_and_temporary() -> None:
    made = Checkpoint.from_dict({"a": 1})
    folder = made.path
    assert os.listdir(folder) == ["_dict_checkpoint.pkl"]
    del made
    gc.collect()
    assert not os.path.exists(folder)


def test_what_cannot_be_pickled_is_named() -> None:
    made = Checkpoint.from_dict({"model": {"lock": threading.Lock()}})
    with pytest.raises(InvalidInputError, match=r"checkpoint\['model'\]\['lock'\]"):
        _ = made.path


@pytest.mark.parametrize("data", [None, [1], "text"])
def test_only_a_dict_is_taken(data: object) -> None:
    with pytest.raises(InvalidInputError, match=r"from_dict needs a dict"):
        Checkpoint.from_dict(data)  # type: ignore[arg-type]


def test_bytes_that_are_none_of_a_checkpoint_are_refused() -> None:
    with pytest.raises(CheckpointError, match="3 bytes are not"):
        Checkpoint.from_bytes(b"abc")
    with pytest.raises(InvalidInputError, match="needs bytes"):
        Checkpoint.from_bytes("abc")  # type: ignore[arg-type]


def test_a_damaged_dict_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "_dict_checkpoint.pkl").write_bytes(b"\x80broken")
    with pytest.raises(CheckpointError, match=r"_dict_checkpoint\.pkl, cannot be read"):
        Checkpoint(tmp_path).to_dict()


def test_metadata_belongs_to_the_checkpoint_and_must_be_json(tmp_path: Path) -> None:
    made = Checkpoint.from_dict({"a": 1})
    made.update_metadata({"epoch": 3})
    assert made.get_metadata() == {"epoch": 3}
    with pytest.raises(InvalidInputError, match="as JSON"):
        made.set_metadata({"lock": threading.Lock()})


def test_a_uri_is_a_copy_elsewhere(tmp_path: Path) -> None:
    made = Checkpoint.from_dict({"a": 1})
    uri = f"file://{tmp_path}/copy"
    assert made.to_uri(uri) == uri
    assert Checkpoint.from_uri(uri).to_dict() == {"a": 1}
    for wrong in ("/no/uri", "gs://bucket/x"):
        with pytest.raises(InvalidInputError):
            Checkpoint.from_uri(wrong)


def test_a_checkpoint_that_vanished_says_so(tmp_path: Path) -> None:
    gone = Checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="does not exist"):
        gone.to_dict()
    with pytest.raises(CheckpointError, match="does not exist"):
        gone.to_bytes()


def test_what_is_no_path_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInputError, match=r"Checkpoint\.from_dict"):
        Checkpoint({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="Ray Data"):
        Checkpoint("/c").get_preprocessor()


class TestOlderArguments:
    def test_make_the_same_checkpoints(self, tmp_path: Path) -> None:
        held = Checkpoint(data_dict={"n": 1})
        assert held.to_dict() == {"n": 1}
        assert pickle.loads(pickle.dumps(held)).to_dict() == {"n": 1}
        assert Checkpoint(local_path=str(tmp_path)) == Checkpoint(tmp_path)
        assert Checkpoint(uri="s3://bucket/x").path == "s3://bucket/x"

    def test_is_a_path_where_scripts_had_one(self, tmp_path: Path) -> None:
        assert os.path.join(Checkpoint(tmp_path), "x") == str(tmp_path / "x")
        assert Checkpoint(tmp_path).value == Checkpoint(tmp_path).dir_or_data == str(tmp_path)
        assert os.path.isdir(Checkpoint(data_dict={"n": 1}))
        assert Checkpoint(tmp_path).to_air_checkpoint() == Checkpoint(tmp_path)
        with pytest.raises(InvalidInputError, match="is not a local directory"):
            os.fspath(Checkpoint("s3://bucket/x"))

    def test_the_uri_says_where_it_is(self, tmp_path: Path) -> None:
        assert Checkpoint(data_dict={}).uri is None
        assert Checkpoint(tmp_path).uri == f"file://{tmp_path}"
        assert Checkpoint("s3://bucket/x").uri == "s3://bucket/x"


class TestWhatCannotBePickled:
    def test_is_named_in_the_first_line(self) -> None:
        with pytest.raises(InvalidInputError) as raised:
            Checkpoint.from_dict({"a": {"lock": threading.Lock()}}).to_bytes()
        assert "lock" in str(raised.value).splitlines()[0].partition("cannot be pickled: ")[2]
