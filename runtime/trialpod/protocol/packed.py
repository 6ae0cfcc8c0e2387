"""The file that carries a pickled Trainable: one line of JSON, a newline, then the pickle.

The first line is there for the reader whose Python or cloudpickle is another one than the writer's. Such a pickle
often cannot be opened at all; the header still can, and says what to do about it.

Invariants:

* The header is a JSON object on one line with at least ``format``, ``python``, ``cloudpickle`` and ``name``.
* The bytes after the first newline are the pickle, unchanged. The file's checksum covers header and pickle.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trialpod.errors import TrainableError, format_mismatch

FORMAT = 1
_PYTHON = "{}.{}.{}".format(*sys.version_info)


def pack(
    pickled: bytes,
    *,
    name: str,
    cloudpickle: str,
    compat: str = "",
    objects: Sequence[str] = (),
    generators: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the file's contents.

    Args:
        pickled: the Trainable as cloudpickle wrote it.
        name: the Trainable's name, for messages.
        cloudpickle: version of the cloudpickle that wrote `pickled`.
        compat: aliases that the code in it needs, as the variable TRIALPOD_COMPAT names them.
        objects: checksums of the objects that are stored beside it (`trialpod.tune.shipping.stored_objects`).
        generators: states of the process's random generators ("python", "numpy"), from which deciding code draws.
    """
    header: dict[str, Any] = {
        "format": FORMAT,
        "python": _PYTHON,
        "cloudpickle": cloudpickle,
        "name": name,
    }
    if compat:
        header["compat"] = compat
    if objects:
        header["objects"] = list(objects)
    if generators:
        header["generators"] = dict(generators)
    return msgspec.json.encode(header) + b"\n" + pickled


def read_packed(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the pickle out of a file's contents, without unpickling anything.

    Raises:
        TrainableError: the contents are not such a file, or of another format.
    """
    line, newline, pickled = data.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainableError(
            "this is not a packed Trainable: its first line is not a JSON header; submit the experiment again"
        ) from error
    mismatch = format_mismatch("this packed Trainable", header.get("format"), FORMAT)
    if mismatch is not None:
        raise TrainableError(f"{mismatch}, or submit the experiment again")
    if not newline or not pickled:
        raise TrainableError(
            "this packed Trainable ends after its header: the file is cut off; submit the experiment again"
        )
    return header, pickled


def version_mismatch(header: dict[str, Any]) -> str | None:
    """Return why a pickle with this header may not load in this Python, or None when nothing speaks against it.

    Code objects inside a pickle belong to one minor version of Python ("3.11").
    """
    theirs, ours = str(header.get("python", "")), _PYTHON
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return None
    return (
        f"{header.get('name', 'the Trainable')} was packed by Python {theirs} and this is Python {ours}; "
        "use an image with the same minor version of Python, or name the Trainable by an entry point "
        "('module:attribute') instead"
    )
