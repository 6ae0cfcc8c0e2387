"""The exceptions that trialpod raises: one tree, whose messages say what was wrong, where, and what to do next.

    TrialpodError                     exit status 1: the work failed
      InvalidInputError               2: the user's input cannot be used (also a ValueError)
        WrongTypeError                a value of a type that has no meaning there (also a TypeError)
        MissingPathError              there is nothing at a path (also a FileNotFoundError)
        NotReadyError                 it was asked for too early (also a RuntimeError)
        NotPicklableError             it cannot be sent to the trials (also a TypeError)
      NotSupportedError               another system's API without a counterpart (also a NotImplementedError)
      TrainableError                  the user's Trainable cannot be loaded, or broke its contract
      CheckpointError                 missing, incomplete or damaged
        NoCheckpointError             none is where it was to be read (also a ValueError)
        SupersededError               another attempt writes the trial's checkpoints
      StorageError                    the storage refused or lost an operation
      ExperimentLockedError           another live process owns the directory
      JournalError                    unreadable to this version, or damaged before its end

The operator adds its own: `trialpod_operator.api.api_errors` has the refusals of the API server.

The command line ends with the `exit_status` of the class. `nearest` builds the "did you mean" part of a message.
"""

from __future__ import annotations

from collections.abc import Iterable

TYPE_CHECKING = False  # importing typing would be most of this module's cost

if TYPE_CHECKING:
    from typing import NoReturn


def add_note(error: BaseException, note: str) -> None:
    """Add a line to an exception's traceback; Python 3.10, which trials may have, shows none."""
    if add := getattr(error, "add_note", None):
        add(note)


class TrialpodError(Exception):
    """Base class of every error that trialpod raises on purpose.

    Attributes:
        exit_status: of a command that ends with it.
    """

    exit_status = 1


class InvalidInputError(TrialpodError, ValueError):
    """Something the user wrote cannot work (a manifest, an argument, a script).

    Attributes:
        parameter: the argument that it is about, and the keys within it: ``("hyperparam_mutations", "lr")``. Empty
            where the message is about none, or about several alike.
    """

    exit_status = 2

    def __init__(self, *args: object, parameter: str | tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        self.parameter = (parameter,) if isinstance(parameter, str) else parameter


class WrongTypeError(InvalidInputError, TypeError):
    """A value is of a type that has no meaning where it was given."""


class MissingPathError(InvalidInputError, FileNotFoundError):
    """There is nothing, or nothing of the kind that is needed, at a path."""


class NotAFolderError(InvalidInputError, NotADirectoryError):
    """A file is where a folder is needed."""


class NotReadyError(InvalidInputError, RuntimeError):
    """Something was asked for before it can be given."""


class NotPicklableError(InvalidInputError, TypeError):
    """Something that has to travel to the trials cannot be pickled.

    Attributes:
        path: the expression that leads to it ("config['a'][0]"); empty where the message names several.
        value: the object; None where the message names several.
    """

    def __init__(self, message: str, *, path: str = "", value: object = None) -> None:
        super().__init__(message)
        self.path = path
        self.value = value


class TrainableError(TrialpodError):
    """The user's Trainable cannot be loaded or broke its contract."""


class WrongReturnError(TrainableError, ValueError):
    """The user's function returned or yielded what is not a result."""


class CheckpointError(TrialpodError):
    """A checkpoint is missing, incomplete or damaged."""


class NoCheckpointError(CheckpointError, ValueError):
    """There is no checkpoint where one was to be read."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """The directory of a checkpoint does not exist."""


class SupersededError(CheckpointError):
    """Another attempt of the trial is active with its checkpoints: this one may not change what it has there.

    An attempt that is superseded although it is its trial's latest follows one whose start was lost with its machine,
    or could not ask the storage where it might write. The next one can.
    """


class StorageError(TrialpodError):
    """The storage refused or lost an operation."""


class ExperimentLockedError(TrialpodError):
    """Another live process owns the experiment directory."""


class NotSupportedError(TrialpodError, NotImplementedError):
    """Something of another system's API that trialpod has no counterpart for; the message says what to do instead."""


class NotOffered:
    """A stand-in for something that trialpod does not offer: it can be imported and mentioned, but not used."""

    def refuse(self) -> NoReturn:
        """Say what to do instead.

        Raises:
            NotSupportedError: always.
        """
        raise NotImplementedError


def refuse_stand_ins(*values: object) -> None:
    """Raise NotSupportedError if a value, or one in a list, is a stand-in for something that is not offered."""
    for value in values:
        if isinstance(value, NotOffered):
            value.refuse()
        if isinstance(value, (list, tuple)):
            refuse_stand_ins(*value)


class JournalError(TrialpodError):
    """The experiment's journal cannot be read by this version, or is damaged before its end."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name closest to `name`, or None when nothing is close enough to suggest."""
    import difflib

    candidates = list(allowed)
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    if name.lower() in lowered:
        return lowered[name.lower()]
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def format_mismatch(what: str, found: object, expected: int) -> str | None:
    """Return why something stored cannot be read here: its format has another version. None when it can.

    Args:
        what: its name, first word of the sentence.
        found: the version that it states.
        expected: the only version that this trialpod reads and writes.
    """
    if found == expected:
        return None
    remedy = "read it with the release of trialpod that wrote it, or start again under another name"
    if isinstance(found, int) and found > expected:
        remedy = "upgrade trialpod to the release that wrote it"
    return (
        f"{what} has format version {found!r}, and this trialpod reads version {expected}. "
        f"Nothing was changed; {remedy}"
    )
