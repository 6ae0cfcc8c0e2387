"""Folders of the operator's own that go at once, however much is in them: it is removed in a thread."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
from pathlib import Path

_PREFIX = ".removed-"


def remove_in_background(folder: Path) -> None:
    """Let a folder disappear, and remove in the background what was in it.

    What a process that ended had no time to remove goes with the next folder beside it.

    Args:
        folder: which need not be there; nobody else puts anything beside it under the names used here.

    Raises:
        OSError: it cannot be renamed.
    """
    for number in itertools.count():
        place = folder.with_name(f"{_PREFIX}{number}")
        try:
            os.rename(folder, place)  # an empty folder would be replaced by it, which is as good
            break
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    threading.Thread(target=_remove_all, args=(folder.parent,), name="trialpod-scrap", daemon=True).start()


def _remove_all(parent: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # the parent may be removed meanwhile, and then all is removed
        for path in parent.glob(f"{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
