"""How commands find the link of a page that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialpod.storage.layout import TRIALPOD_DIR
from trialpod_operator.ui.running_pages import PageFile, find_link, pages_folder

LINK = "http://127.0.0.1:8123/?token=abc"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "results/digits" / TRIALPOD_DIR).mkdir(parents=True)
    return tmp_path / "results"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "runtime/pages"


@pytest.fixture
def page(root: Path, files: Path) -> Iterator[PageFile]:
    page = PageFile(str(root), files)
    page.write(LINK)
    yield page
    page.close()


class TestLinks:
    def test_lead_to_an_experiment_in_the_folder(self, page: PageFile, root: Path, files: Path) -> None:
        assert find_link(str(root / "digits"), files) == f"{LINK}#/e/digits"

    def test_know_an_experiment_that_does_not_exist_yet(self, page: PageFile, root: Path, files: Path) -> None:
        assert find_link(str(root / "to come"), files) == f"{LINK}#/e/to%20come"

    def test_lead_to_the_folder_itself(self, page: PageFile, root: Path, files: Path) -> None:
        assert find_link(str(root), files) == LINK

    def test_are_none_for_another_folder(self, page: PageFile, root: Path, files: Path) -> None:
        assert find_link(str(root.parent / "others/digits"), files) == ""
        assert find_link(str(root / "digits/trial"), files) == ""

    def test_follow_a_symbolic_link(self, page: PageFile, root: Path, files: Path) -> None:
        (root.parent / "other").symlink_to(root)
        assert find_link(str(root.parent / "other/digits"), files) == f"{LINK}#/e/digits"

    def test_of_a_page_of_one_experiment(self, root: Path, files: Path) -> None:
        page = PageFile(str(root / "digits"), files)
        page.write(LINK)
        assert find_link(str(root / "digits"), files) == f"{LINK}#/e/digits"
        page.close()

    def test_of_a_bucket(self, files: Path) -> None:
        page = PageFile("s3://tune/experiments/", files)
        page.write(LINK)
        assert find_link("s3://tune/experiments/climb", files) == f"{LINK}#/e/climb"
        page.close()

    def test_are_the_latest_that_the_page_wrote(self, page: PageFile, root: Path, files: Path) -> None:
        page.write(LINK + "d")
        assert find_link(str(root), files) == LINK + "d"


class TestFiles:
    def test_can_be_read_by_this_user_alone(self, page: PageFile, files: Path) -> None:
        assert files.stat().st_mode & 0o077 == 0
        assert {path.stat().st_mode & 0o777 for path in files.iterdir()} == {0o600}

    def test_are_removed_at_the_end(self, page: PageFile, root: Path, files: Path) -> None:
        page.close()
        assert find_link(str(root), files) == ""
        assert list(files.iterdir()) == []

    def test_of_a_killed_page_are_removed(self, page: PageFile, root: Path, files: Path) -> None:
        (lock,) = files.glob("*.lock")
        dead = files / "1-dead.lock"
        dead.touch()
        dead.with_suffix(".json").write_bytes(lock.with_suffix(".json").read_bytes().replace(b"8123", b"9999"))
        assert find_link(str(root), files) == LINK
        assert len(list(files.iterdir())) == 2

    def test_that_are_damaged_cost_only_the_link(self, page: PageFile, root: Path, files: Path) -> None:
        next(files.glob("*.json")).write_text("{")
        assert find_link(str(root), files) == ""

    def test_are_optional(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        page = PageFile(str(root), tmp_path / "file/pages")
        page.write(LINK)
        page.close()
        assert find_link(str(root), tmp_path / "file/pages") == ""

    def test_are_in_the_runtime_folder_of_the_user(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        assert pages_folder() == tmp_path / "trialpod/pages"
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
        assert pages_folder() == tmp_path / "cache/trialpod/pages"
