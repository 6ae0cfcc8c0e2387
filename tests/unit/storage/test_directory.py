from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import pytest

from trialpod.errors import CheckpointError, InvalidInputError, StorageError
from trialpod.storage.base import KeyExistsError, KeyMissingError
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.registry import open_storage


@pytest.fixture
def storage(tmp_path):
    return DirectoryStorage(tmp_path / "root")


def test_what_is_written_is_read_and_replaced_as_a_whole(storage):
    storage.write("a/b.json", b"one")
    storage.write("a/b.json", b"two")
    assert storage.read("a/b.json") == b"two"
    assert storage.list() == ["a/b.json"]


def test_a_missing_key_is_named(storage):
    with pytest.raises(KeyMissingError, match=r"no file .*/root/x"):
        storage.read("x")


def test_write_new_refuses_a_taken_key_and_leaves_it(storage):
    storage.write_new("k", b"one")
    with pytest.raises(KeyExistsError, match="exists"):
        storage.write_new("k", b"two")
    assert storage.read("k") == b"one"
    assert os.listdir(storage.local_path("")) == ["k"]


def test_one_of_several_concurrent_writers_wins(storage):
    won = []
    barrier = threading.Barrier(8)

    def write(number):
        barrier.wait()
        try:
            storage.write_new("k", b"%d" % number)
        except KeyExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("k") == b"%d" % won[0]


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def no_links(self, monkeypatch):
        def refuse(source, target):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)

    @pytest.mark.parametrize("renames", [True, False])
    def test_write_new_refuses_a_taken_key(self, storage, monkeypatch, renames):
        """Also on a system that can rename only so that it replaces."""
        if not renames:
            monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
        storage.write_new("k", b"one")
        with pytest.raises(KeyExistsError):
            storage.write_new("k", b"two")
        assert storage.read("k") == b"one"
        assert os.listdir(storage.local_path("")) == ["k"]

    def test_key_is_never_seen_empty(self, storage, monkeypatch):
        """Whose writer is killed then leaves it so."""

        def killed(source, target):
            raise SystemExit

        monkeypatch.setattr(os, "replace", killed)
        with contextlib.suppress(SystemExit):
            storage.write_new("k", b"one")
        assert storage.read("k") == b"one"


def test_listing_is_sorted_and_below_a_folder(storage):
    for key in ("b/2", "b/1", "a", "bc"):
        storage.write(key, b"")
    assert storage.list() == ["a", "b/1", "b/2", "bc"]
    assert storage.list("b") == ["b/1", "b/2"]
    assert storage.list("none") == []
    assert storage.exists("b")
    assert not storage.exists("c")


def test_deleting_is_repeatable(storage):
    storage.write("a/b", b"")
    storage.write("a/c", b"")
    for _ in range(2):
        storage.delete("a/b")
    assert storage.list() == ["a/c"]
    for _ in range(2):
        storage.delete_tree("a")
    assert storage.list() == []


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\0b", "a/"])
def test_a_key_cannot_leave_the_root(storage, key):
    for use in (storage.read, storage.delete, storage.delete_tree, storage.sub, storage.exists):
        with pytest.raises(StorageError, match="invalid storage key"):
            use(key)


def test_folders_are_copied_in_and_out(storage, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "x").write_bytes(b"new")
    storage.write("t/sub/x", b"old")
    storage.write("t/other", b"stays")
    storage.put_directory(tmp_path / "in", "t")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").write_bytes(b"replaced")
    storage.get_directory("t", tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "x").read_bytes() == b"new"
    assert (tmp_path / "out" / "other").read_bytes() == b"stays"
    with pytest.raises(KeyMissingError):
        storage.get_directory("none", tmp_path / "out")
    with pytest.raises(CheckpointError):
        storage.put_directory(tmp_path / "none", "t")


def test_a_part_of_a_storage_is_a_storage(storage):
    storage.sub("a").sub("b").write("c", b"x")
    assert storage.read("a/b/c") == b"x"


def test_a_path_or_file_uri_opens_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for uri in ("~/x y", f"file://{tmp_path}/x%20y", f"file://localhost{tmp_path}/x y", f"{tmp_path}/x y", "x y"):
        assert open_storage(uri).uri == f"{tmp_path}/x y"


@pytest.mark.parametrize("uri", ["", "  ", "file://host/x", "file://"])
def test_a_storage_uri_that_names_nothing_is_invalid(uri):
    with pytest.raises(InvalidInputError, match="storage"):
        open_storage(uri)


@pytest.mark.parametrize("uri", ["gs://bucket", "ftp://host/x"])
def test_an_unsupported_scheme_says_what_is_supported(uri):
    with pytest.raises(StorageError, match=r"there are plain paths, file://, s3://"):
        open_storage(uri)


def test_a_file_where_a_folder_is_needed_is_a_storage_error(storage):
    storage.write("a", b"")
    with pytest.raises(StorageError, match="cannot make the folder"):
        storage.write("a/b", b"")
