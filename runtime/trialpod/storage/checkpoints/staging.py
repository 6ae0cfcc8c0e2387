"""The local folders of checkpoints that are not committed yet: written by the user, or copied from the user's folder.

Invariant: a sealed folder shares nothing with any other place, and only its store writes to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trialpod.errors import CheckpointError
from trialpod.storage.file_tree import Tree, copy_tree, replace_links, scan_tree
from trialpod.storage.layout import checkpoint_name, is_internal


class LocalFile(NamedTuple):
    """The content of a checkpoint's file on this machine.

    Attributes:
        path: its path in the checkpoint.
        size: bytes.
        place: the file with the content: its own, or a local pack of many.
        offset: where in `place` it starts.
    """

    path: str
    size: int
    place: str
    offset: int = 0


class Staged:
    """One of the folders.

    Attributes:
        folder: its path.
        tree: what is in it, once it is sealed; None before.
        packed: files of the checkpoint that share a file in the folder, which `tree` does not list.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.tree: Tree | None = None
        self.packed: list[LocalFile] = []

    def seal(self) -> Tree:
        """Cut it off from the rest of the disk; raise CheckpointError if it holds what cannot be copied."""
        if self.tree is None:
            scan_tree(self.folder)  # finds what cannot be copied, before anything is changed
            replace_links(self.folder)
            self.tree = _without_internal(scan_tree(self.folder))
        return self.tree

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def copy_unpacked(source: str, target: str, tree: Tree) -> list[LocalFile]:
    """Copy what `tree` lists, each file by itself."""
    copy_tree(source, target, tree)
    return []


class Staging:
    """The staged checkpoints of one store, by index.

    Args:
        make_folder: makes the folder for the checkpoint with this index.
        copy: copies what a tree lists into an empty folder; files that it packs leave the tree and are returned.
    """

    def __init__(
        self,
        make_folder: Callable[[int], str],
        copy: Callable[[str, str, Tree], list[LocalFile]] = copy_unpacked,
    ) -> None:
        self._make_folder = make_folder
        self._copy = copy
        self._staged: dict[int, Staged] = {}

    def begin(self, index: int) -> Staged:
        """Make an empty folder in place of the one that this index had."""
        self.discard(index)
        staged = self._staged[index] = Staged(self._make_folder(index))
        return staged

    def snapshot(self, index: int, source: Path | None) -> int:
        """Do what `CheckpointStore.snapshot` says."""
        staged = self._staged.get(index)
        if source is None or (staged is not None and source.absolute() == Path(staged.folder)):
            return self.sealed(index).seal().size
        if staged is not None and any(Path(staged.folder).iterdir()):
            raise CheckpointError(f"{staged.folder} was written to; commit it without a source, or leave it empty")
        tree = _without_internal(scan_tree(str(source)))
        size = tree.size
        try:
            if staged is None:
                staged = self.begin(index)
            staged.packed = self._copy(str(source), staged.folder, tree)
        except BaseException:
            self.discard(index)
            raise
        staged.tree = tree
        return size

    def sealed(self, index: int) -> Staged:
        """Return what was begun or snapshot under this index, sealed; on an error nothing of it is left."""
        staged = self._staged.get(index)
        if staged is None:
            raise CheckpointError(
                f"{checkpoint_name(index)} was not begun; call begin({index}) or snapshot({index}, folder) first"
            )
        try:
            staged.seal()
        except BaseException:
            self.discard(index)
            raise
        return staged

    def release(self, index: int) -> None:
        """Forget the folder of this index: it is its caller's now."""
        self._staged.pop(index, None)

    def discard(self, index: int) -> None:
        """Remove the folder of this index, if there is one."""
        staged = self._staged.pop(index, None)
        if staged is not None:
            staged.remove()

    def folders(self) -> set[str]:
        """Return the paths of all folders."""
        return {staged.folder for staged in self._staged.values()}


def _without_internal(tree: Tree) -> Tree:
    # A checkpoint that was fetched and is committed again brings its old manifest along.
    for path in [path for path in tree.files if is_internal(path)]:
        del tree.files[path]
    return tree
