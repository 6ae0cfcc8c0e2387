"""The files of the page: complete, unchanged where they are others' work, and free of what its policy forbids."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

STATIC = Path(__file__).resolve().parents[3] / "operator" / "trialpod_operator" / "ui" / "static"
OWN = sorted([*STATIC.glob("js/**/*.js"), STATIC / "index.html", STATIC / "style.css"])


class TestVendoredFiles:
    def test_hashes_match(self) -> None:
        folder = STATIC / "vendor" / "uplot"
        expected = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
        found = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.iterdir()
            if file.name in expected
        }
        assert found == expected
        assert {file.name for file in folder.iterdir()} == {*expected, "SHA256SUMS"}

    def test_the_licence_is_with_them(self) -> None:
        assert "Permission is hereby granted" in (STATIC / "vendor" / "uplot" / "LICENSE").read_text()


class TestPolicy:
    @pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
    def test_nothing_is_inline_or_from_elsewhere(self, file: Path) -> None:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|\bdata:", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        if file.suffix == ".html":
            assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?![^>]*\ssrc=)", text)

    def test_every_import_exists(self) -> None:
        for file in STATIC.glob("js/**/*.js"):
            for name in re.findall(r'from "(\.[^"]+)"', file.read_text()):
                assert (file.parent / name).resolve().is_file(), f"{file.name} imports {name}"
