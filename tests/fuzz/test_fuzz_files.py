"""Damage to anything that is stored is found and told with file and remedy, or is the torn end of a crash."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fuzz_values import MORE, changed, damaged, examples, nested
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialpod.cli.main import main
from trialpod.errors import CheckpointError, InvalidInputError, JournalError, TrainableError, TrialpodError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.packed import read_packed
from trialpod.storage.checkpoints import manifest, open_checkpoints
from trialpod.storage.journal.format import encode_segment_header
from trialpod.storage.journal.journal import Journal
from trialpod.storage.registry import open_storage
from trialpod.tune.shipping import stored_objects
from trialpod_operator.experiment.records import decode_record, decode_snapshot
from trialpod_operator.experiment.stored import read_stored

V1 = Path(__file__).parents[1] / "data" / "formats" / "v1"
EXPERIMENT = V1 / "experiment"
JOURNAL = EXPERIMENT / ".trialpod" / "journal"
SHARED = [HealthCheck.function_scoped_fixture]


def read_journal(folder: Path) -> tuple[bytes | None, list[bytes]]:
    journal = Journal.open(folder, read_only=True)
    try:
        return journal.snapshot, list(journal.records())
    finally:
        journal.close()


WHOLE = read_journal(JOURNAL)


def judge_journal(folder: Path, name: str) -> None:
    """What is read is what was written, up to a torn end; or it is refused with the file's name and what to do."""
    try:
        snapshot, records = read_journal(folder)
    except JournalError as error:
        assert name in str(error) or ".log" in str(error) or "journal" in str(error)
        assert any(word in str(error) for word in ("copy", "update", "truncate", "start a new")), error
        return
    assert snapshot == WHOLE[0]
    assert records == WHOLE[1][: len(records)]


def test_flipped_journal_byte_is_found_or_cuts_only_the_end(tmp_path: Path) -> None:
    shutil.copytree(JOURNAL, tmp_path / "j")
    for file in sorted((tmp_path / "j").iterdir()):
        data = file.read_bytes()
        for at in (*range(64), *range(64, len(data), 1 if MORE > 1 else 7)):
            file.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
            judge_journal(tmp_path / "j", file.name)
        for end in range(0, len(data), 7 if MORE > 1 else 41):
            file.write_bytes(data[:end])
            judge_journal(tmp_path / "j", file.name)
        file.write_bytes(data)


@settings(max_examples=examples(80), suppress_health_check=SHARED)
@given(data=st.data())
def test_journal_damage_is_found_or_cuts_only_the_end(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(JOURNAL, Path(folder, "j")))
        file = data.draw(st.sampled_from(sorted(place.iterdir())))
        file.write_bytes(data.draw(damaged(file.read_bytes())))
        judge_journal(place, file.name)


def test_lengths_that_cannot_be_do_not_take_time_or_memory(tmp_path: Path) -> None:
    for length in (2**32 - 1, 2**31, 2**30):
        (tmp_path / "00000001.log").write_bytes(
            encode_segment_header(1) + length.to_bytes(4, "little") + b"\1\0\0\0" + b"\xff" * 200_000
        )
        assert read_journal(tmp_path) == (None, [])


def test_files_of_the_journal_that_were_exchanged_are_refused(tmp_path: Path) -> None:
    place = Path(shutil.copytree(JOURNAL, tmp_path / "j"))
    log, snapshot = place / "00000002.log", place / "00000002.snapshot"
    log.write_bytes(snapshot.read_bytes())
    with pytest.raises(JournalError, match=r"00000002\.log is damaged at byte 0.*begin.*copy"):
        read_journal(place)
    log.write_bytes(encode_segment_header(1))
    with pytest.raises(JournalError, match="not of one journal"):
        read_journal(place)
    snapshot.write_bytes(b"")
    with pytest.raises(JournalError, match="ends inside its header"):
        read_journal(place)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_arbitrary_records_and_snapshots_are_read_or_refused(data: st.DataObject) -> None:
    assert WHOLE[0] is not None
    original = data.draw(st.sampled_from([WHOLE[0], *WHOLE[1]]))
    read: Callable[[bytes], Any] = decode_snapshot if original is WHOLE[0] else decode_record
    if data.draw(st.booleans()):
        content = data.draw(damaged(original))
    else:
        content = msgspec.msgpack.encode(data.draw(changed(msgspec.msgpack.decode(original))))
    try:
        read(content)
    except JournalError as error:
        assert "trialpod" in str(error)


MANIFEST = (V1 / "manifest.json").read_bytes()


def test_a_flip_of_any_byte_of_a_manifest_is_found() -> None:
    whole = manifest.decode(MANIFEST, "m")
    for at in range(len(MANIFEST) - 1):
        for bit in (0, 3, 7):
            broken = MANIFEST[:at] + bytes([MANIFEST[at] ^ (1 << bit)]) + MANIFEST[at + 1 :]
            try:
                found = manifest.decode(broken, "m")
            except CheckpointError as error:
                assert str(error).startswith("m ")
            else:
                assert found == whole
        with pytest.raises(CheckpointError):
            manifest.decode(MANIFEST[:at], "m")


@settings(max_examples=examples(150))
@given(data=st.data())
def test_a_manifest_with_anything_in_it_is_read_or_refused(data: st.DataObject) -> None:
    body = data.draw(changed(msgspec.json.decode(MANIFEST)["manifest"]))
    text = msgspec.json.encode(body)
    try:
        found = manifest.decode(b'{"manifest":%s,"crc32":%d}' % (text, zlib.crc32(text)), "m")
    except CheckpointError as error:
        assert str(error).startswith("m ")
    else:
        assert isinstance(found, manifest.Tombstone) or found.format == manifest.FORMAT_VERSION


@pytest.mark.parametrize("path", ["../../outside", "/etc/passwd", "a/../../b", "", ".", "a\0b"], ids=repr)
def test_manifest_naming_outside_files_reads_none(tmp_path: Path, path: str) -> None:
    trial = Path(shutil.copytree(next(EXPERIMENT.glob("*_00003_*")), tmp_path / "deep" / "trial"))
    (tmp_path / "deep" / "outside").write_bytes(b"weights\n")
    file = trial / "checkpoint_000000" / ".trialpod-manifest.json"
    body = msgspec.json.decode(file.read_bytes())["manifest"]
    body["files"][0]["path"] = path
    text = msgspec.json.encode(body)
    file.write_bytes(b'{"manifest":%s,"crc32":%d}' % (text, zlib.crc32(text)))
    store = open_checkpoints(open_storage(str(trial)))
    info = msgspec.convert(body["checkpoint"], CheckpointInfo)
    with pytest.raises(CheckpointError, match="is damaged"):
        store.fetch(info)
    store.close()


PACKED = (V1 / "trainable.pkl").read_bytes()


@settings(max_examples=examples(100))
@given(data=damaged(PACKED))
def test_a_damaged_packed_trainable_is_read_or_refused(data: bytes) -> None:
    try:
        header, pickled = read_packed(data)
    except TrainableError as error:
        assert any(word in str(error) for word in ("submit", "use the version"))
    else:
        assert header["format"] == 1
        assert pickled


@settings(max_examples=examples(100))
@given(data=st.data())
def test_a_damaged_object_of_a_trainable_is_refused(data: st.DataObject) -> None:
    (stored,) = V1.glob("object-*")
    whole = stored.read_bytes()
    broken = data.draw(damaged(whole))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, stored.name.removeprefix("object-"))
        file.write_bytes(broken)
        if broken == whole:
            return
        with pytest.raises(TrainableError, match=r"submit|newer version"):
            stored_objects.read_object(file, file.name)


STORED = (EXPERIMENT / ".trialpod" / "experiment.json").read_bytes()


@settings(max_examples=examples(100))
@given(data=st.one_of(damaged(STORED), changed(msgspec.json.decode(STORED)).map(msgspec.json.encode)))
def test_damaged_experiment_file_is_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, ".trialpod", "experiment.json")
        file.parent.mkdir()
        file.write_bytes(data)
        try:
            found = read_stored(Path(folder))
        except InvalidInputError as error:
            assert str(file) in str(error)
            assert any(word in str(error) for word in ("backup", "upgrade"))
        else:
            assert found is not None
            assert found["version"] == 1


def test_a_file_nested_without_end_is_refused(tmp_path: Path) -> None:
    deep = b"[" * 200_000
    (tmp_path / ".trialpod").mkdir()
    (tmp_path / ".trialpod" / "experiment.json").write_bytes(b'{"version": 1, "name": ' + deep)
    with pytest.raises(InvalidInputError, match="backup"):
        read_stored(tmp_path)
    with pytest.raises(CheckpointError):
        manifest.decode(b'{"manifest":' + deep, "m")
    with pytest.raises(TrainableError):
        read_packed(b'{"format":' + deep + b"\nx")
    with pytest.raises(CheckpointError, match="damaged"):
        manifest.decode(b'{"tombstone":' + deep, "m")
    assert nested(3) == [[[0]]]


FILES = sorted(
    str(file.relative_to(EXPERIMENT))
    for file in EXPERIMENT.rglob("*")
    if file.is_file() and ("_00003_" in str(file) or ".trialpod/" in str(file))
)


@settings(max_examples=examples(40), suppress_health_check=SHARED)
@given(data=st.data())
def test_commands_on_damaged_experiment_report_and_exit(
    data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(EXPERIMENT, Path(folder, "e")))
        name = data.draw(st.sampled_from(FILES))
        file = place / name
        how = data.draw(st.sampled_from(["damage", "damage", "damage", "remove", "empty", "swap", "folder"]))
        whole = file.read_bytes()
        if how == "damage":
            file.write_bytes(data.draw(damaged(whole)))
        elif how == "empty":
            file.write_bytes(b"")
        elif how == "swap":
            file.write_bytes((place / data.draw(st.sampled_from(FILES))).read_bytes())
        else:
            file.unlink()
            if how == "folder":
                file.mkdir()
        same = file.is_file() and file.read_bytes() == whole
        for command in (["fsck", str(place), "--verify"], ["results", str(place)], ["checkpoints", str(place)]):
            capsys.readouterr()
            status = main(command)
            captured = capsys.readouterr()
            assert status in (0, 1, 2), command
            assert "Traceback" not in captured.err
            assert captured.out or captured.err
            # A flip in what only people read (params.json, progress.csv) may go unseen; in the rest never.
            watched = name.endswith((".snapshot", "manifest.json", "model.txt", "more.bin"))
            if command[0] == "fsck" and watched and not same and status == 0:
                assert name.endswith("manifest.json"), name
                assert manifest.decode(file.read_bytes(), "m") == manifest.decode(whole, "m")


def test_errors_of_damaged_files_are_trialpods_own() -> None:
    assert issubclass(JournalError, TrialpodError)
    assert issubclass(CheckpointError, TrialpodError)
