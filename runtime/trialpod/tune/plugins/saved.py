"""States of schedulers and search algorithms in files, for scripts that save them by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.state import PlugIn, attributes_of, is_pickled, pickle_attributes


class SavedPlugIn(PlugIn):
    """A plug-in that scripts may save to a file and restore from it."""

    KIND = "plug-in"

    def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Write the state to a file."""
        if is_pickled(self):
            pickle_attributes(self, checkpoint_path)
        else:
            state: Any = self.get_state()  # type: ignore[attr-defined]
            write_json(checkpoint_path, state)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Read the state that `save` wrote."""
        if is_pickled(self):
            vars(self).update(attributes_of(checkpoint_path))
            return
        try:
            state = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            place = os.fspath(checkpoint_path)
            raise InvalidInputError(f"{place} holds no state of a {self.KIND}: {error}") from error
        self.set_state(state)  # type: ignore[attr-defined]


def write_json(path: str | os.PathLike[str], state: Any) -> None:
    """Write a state to a file, which is there as a whole or as it was."""
    temporary = Path(f"{os.fspath(path)}.tmp")
    temporary.write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(path)


def newest_state(folder: str | os.PathLike[str], pattern: str, kind: str) -> Path:
    """Return the newest file in a folder whose name fits."""
    found = list(Path(folder).glob(pattern))
    if not found:
        raise InvalidInputError(f"{os.fspath(folder)} has no {pattern}: no {kind} was saved there")
    return max(found, key=lambda file: (file.stat().st_mtime_ns, file.name))
