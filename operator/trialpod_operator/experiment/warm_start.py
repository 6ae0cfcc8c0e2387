"""What an experiment learns from earlier ones: read once, before its first start, and kept in its stored document.

So every later start has the same search, although the earlier experiments may have changed or be gone by then. A
decider reads none: it gets what is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trialpod.errors import InvalidInputError, StorageError, nearest
from trialpod.storage.base import Storage, StorageUnavailableError
from trialpod.storage.registry import open_storage
from trialpod.tune.location.locations import Location, experiment_location
from trialpod.tune.search.auto import AutoSearch
from trialpod.tune.search.library_searcher import LibrarySearcher
from trialpod.tune.search.searcher import Searcher

KEY = "warmStart"
"""Of the stored document: the entries of the search's log, which experiments they are of, and why not of others."""

MAX_EXPERIMENTS = 20
"""Maximum number of earlier experiments of an automatic warm start."""

_LOOKED_AT = 200


class Earlier(Protocol):
    """The experiments that are kept beside one."""

    def __call__(self, location: str) -> Storage:
        """Return the storage of one, by its name or URI.

        Raises:
            InvalidInputError: it may not be read.
            StorageError: it cannot be opened.
        """
        ...

    def names(self) -> list[str]:
        """Return the names of all others."""
        ...


class EarlierHere:
    """Those beside an experiment of this machine, and any other that the user can open.

    Args:
        parent: of the experiment's directory.
        uri: below which it is kept, "" for only there.
        own: the experiment's name.
    """

    def __init__(self, parent: str | Path, uri: str, own: str) -> None:
        self._parent, self._own = Location(str(parent), uri), own

    def __call__(self, location: str) -> Storage:
        """Return the storage of one, by its name, directory or URI."""
        if location == self._own:
            raise InvalidInputError(f"warm start: {location!r} is this experiment itself", parameter="warm_start")
        beside = "/" not in location and not location.startswith((".", "~"))
        if beside and (self._parent.uri or Path(self._parent.directory, location).is_dir()):
            return self._parent.named(location).storage()
        if beside and not Path(location).is_dir():
            guess = nearest(location, self.names())
            hint = f" Did you mean {guess!r}?" if guess else " Name one of them, or give a directory or a URI"
            raise InvalidInputError(
                f"warm start: there is no experiment {location!r} in {self._parent.directory}.{hint}",
                parameter="warm_start",
            )
        return experiment_location(location).storage()

    def names(self) -> list[str]:
        """Return the names of all others, in order."""
        if self._parent.uri:
            found: Iterable[str] = open_storage(self._parent.uri).folders()
        else:
            parent = Path(self._parent.directory)
            found = [each.name for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
        return sorted(name for name in found if name != self._own and not name.startswith("."))


def lessons_in(document: Mapping[str, Any]) -> list[list[Any]]:
    """Return the lessons that a stored document keeps."""
    found: list[list[Any]] = document[KEY]["lessons"] if KEY in document else []
    return found


def keeping(lessons: list[list[Any]]) -> dict[str, Any]:
    """Return the entries of a stored document that keeps lessons, with which no experiment is read."""
    return {KEY: {"lessons": lessons}}


class EarlierInDecider:
    """Those that a decider can open: it has no access to the experiment's storage, and nothing is beside it."""

    def __call__(self, location: str) -> Storage:
        """Return the storage of one, by its directory or URI, with what keys the user's pod has."""
        if "/" in location:
            return experiment_location(location).storage()
        raise InvalidInputError(
            f"warm start: {location!r} cannot be opened by a search that is made in a decider: it has no access to "
            "the experiment's storage; in the script, call add_evaluated_experiment(place) of the search before the "
            'Tuner gets it, or use TuneConfig(algorithm="auto", warm_start=...)',
            parameter="warm_start",
        )

    def names(self) -> list[str]:
        """Return none."""
        return []


def learn(
    search: object,
    wanted: Mapping[str, Any] | None,
    stored: Mapping[str, Any] | None,
    earlier: Earlier | None,
) -> tuple[dict[str, Any] | None, str]:
    """Give a search what earlier experiments teach.

    Args:
        search: of the experiment, ready for it.
        wanted: `spec.warmStart`, with "experiments" or "auto"; None for none.
        stored: the experiment's stored document; None before its first start.
        earlier: what may be read; None reads nothing.

    Returns:
        What belongs into the stored document under `KEY`, None for nothing; and what the user should know.

    Raises:
        InvalidInputError: a named experiment is not there, or teaches nothing; or the search takes no warm start.
        StorageError: one cannot be read.
    """
    searcher = _innermost(search)
    if earlier is not None:
        _open_through(search, earlier)
    if wanted and not isinstance(searcher, AutoSearch):
        raise InvalidInputError(
            "warmStart is advice for the search auto: give algorithm auto or that search; other searches learn from "
            "one experiment, by their parameter warm_start",
            parameter="warm_start",
        )
    if not isinstance(searcher, LibrarySearcher):
        return None, ""
    kept = None if stored is None else stored.get(KEY)
    if isinstance(kept, dict) and isinstance(kept.get("lessons"), list):
        searcher.take_earlier(kept["lessons"])
        return kept, ""
    if earlier is None or (stored is not None and not wanted) or not (wanted or searcher.reads_ahead):
        return None, ""
    if not wanted:
        lessons, count = searcher.read_earlier()
        document: dict[str, Any] = {"lessons": lessons, "learned": [{"trials": count}], "unused": []}
        left = ""
    else:
        assert isinstance(searcher, AutoSearch)
        if wanted.get("auto"):
            document, left = _all_beside(searcher, earlier)
        else:
            document, left = _named(searcher, wanted["experiments"]), ""
    searcher.take_earlier(document["lessons"])
    none = "no earlier experiment beside this one has anything in common with it, so it starts as without one"
    said = [none] if wanted and not document["learned"] else []
    said += [left] if left else []
    return document, "warm start: " + "; ".join(said) if said else ""


def _named(searcher: AutoSearch, places: Sequence[str]) -> dict[str, Any]:
    read = [(location, *searcher.read_earlier(location)) for location in dict.fromkeys(places)]
    return _document(read, [])


def _all_beside(searcher: AutoSearch, earlier: Earlier) -> tuple[dict[str, Any], str]:
    """Return what is kept, and what to say of names that were not looked at."""
    read: list[tuple[str, list[list[Any]], int]] = []
    unused: list[dict[str, str]] = []
    names = earlier.names()
    for name in names[:_LOOKED_AT]:
        if len(read) == MAX_EXPERIMENTS:
            break
        try:
            lessons, count = searcher.read_earlier(name)
        except StorageUnavailableError:
            raise
        except (InvalidInputError, StorageError) as error:
            unused.append({"experiment": name, "why": str(error)})
            continue
        if searcher.overlap(lessons) < 0.5:
            unused.append({"experiment": name, "why": "it shares less than half of the parameters"})
            continue
        read.append((name, lessons, count))
    left = ""
    if len(names) > _LOOKED_AT and len(read) < MAX_EXPERIMENTS:
        left = f"only the first {_LOOKED_AT} of {len(names)} names beside this one were looked at; "
        left += "warmStart.experiments takes others by name"
    return _document(read, unused), left


def _document(read: list[tuple[str, list[list[Any]], int]], unused: list[dict[str, str]]) -> dict[str, Any]:
    """Return what is kept: of several experiments the best configs take turns, as their values do not compare."""
    best = [[point for lesson in lessons for point in lesson[1]] for _, lessons, _ in read]
    mixed = [point for row in itertools.zip_longest(*best) for point in row if point is not None]
    return {
        "lessons": [["history", mixed]] if mixed else [],
        "learned": [{"experiment": location, "trials": count} for location, _, count in read],
        "unused": unused,
    }


def _searchers(search: object) -> Iterable[Searcher]:
    searcher = getattr(search, "searcher", None)
    while isinstance(searcher, Searcher):  # a limiter has another one within
        yield searcher
        searcher = getattr(searcher, "searcher", None)


def _innermost(search: object) -> Searcher | None:
    found = None
    for searcher in _searchers(search):
        found = searcher
    return found


def _open_through(search: object, earlier: Earlier) -> None:
    for searcher in _searchers(search):
        searcher.open_earlier = earlier
