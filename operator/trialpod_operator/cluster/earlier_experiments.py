"""Opens earlier experiments for searches that learn from them: those that are kept beside the experiment itself.

The experiment's own keys open them, so a search reads nothing that its user could not. A folder of the operator's
pod, or another prefix that its keys happen to open, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialpod.errors import InvalidInputError
from trialpod.storage.base import Storage
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage
from trialpod_operator.experiment.stored import stored_namespace

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True)
class EarlierExperiments:
    """The experiments that are kept beside one.

    Args:
        uri: of the experiment itself.
        options: its storage, as the operator opens it.
        namespace: of the experiment; those of another one are refused.
    """

    uri: str
    options: StorageOptions
    namespace: str = ""

    def __call__(self, location: str) -> Storage:
        """Return the storage of one.

        Args:
            location: its name, or its URI.

        Raises:
            InvalidInputError: it is not kept beside this one, is this one, or belongs to another namespace.
            StorageError: it cannot be opened.
        """
        parent, _, own = self.uri.rpartition("/")
        name = location.rstrip("/").removeprefix(f"{parent}/")
        if not _NAME.fullmatch(name) or ".." in name or name == own:
            raise InvalidInputError(
                f"warm_start: {location!r} is no other experiment that is kept in {parent}, the storage of this one; "
                f"give the name of one, or {parent}/NAME",
                parameter="warm_start",
            )
        storage = open_storage(f"{parent}/{name}", self.options)
        if self.namespace and stored_namespace(storage) not in ("", self.namespace):
            raise InvalidInputError(
                f"warm_start: {location!r} is an experiment of another namespace than this one, {self.namespace}",
                parameter="warm_start",
            )
        return storage

    def names(self) -> list[str]:
        """Return the names of all others, in order.

        Raises:
            StorageError: they cannot be listed.
        """
        parent, _, own = self.uri.rpartition("/")
        found = open_storage(parent, self.options).folders()
        return sorted(name for name in found if name != own and _NAME.fullmatch(name))
