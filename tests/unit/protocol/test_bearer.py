from __future__ import annotations

import os
from pathlib import Path

import pytest

from trialpod.protocol.bearer import BearerToken
from trialpod.protocol.http import TransportError


def test_the_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    token = BearerToken(str(file))
    assert (token(), token()) == ("Bearer first", "Bearer first")
    (tmp_path / "new").write_text("secnd\n")
    (tmp_path / "new").replace(file)
    assert token() == "Bearer secnd"


def test_the_kubelets_exchange_of_a_symbolic_link_is_seen(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    token = BearerToken(str(tmp_path / "token"))
    assert token() == "Bearer one"
    (tmp_path / "..tmp").symlink_to("two")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    assert token() == "Bearer two"


def test_refused_token_is_read_again_even_if_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("aaa")
    found = os.stat(file)
    token = BearerToken(str(file))
    token()
    file.write_text("bbb")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert token() == "Bearer aaa"
    token.refused()
    assert token() == "Bearer bbb"


def test_a_missing_file_is_retried_later(tmp_path: Path) -> None:
    token = BearerToken(str(tmp_path / "token"))
    with pytest.raises(TransportError, match="token of this pod cannot be read"):
        token()
    (tmp_path / "token").write_text("there")
    assert token() == "Bearer there"


def test_a_token_that_was_read_serves_while_its_file_is_away(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("kept")
    token = BearerToken(str(file))
    token()
    file.unlink()
    assert token() == "Bearer kept"


@pytest.mark.parametrize("content", ["", "\n", "a\r\nX-Evil: 1", "a b", "ü"])
def test_what_is_no_token_never_becomes_a_header(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content.encode())
    with pytest.raises(TransportError, match="holds no token"):
        BearerToken(str(file))()
