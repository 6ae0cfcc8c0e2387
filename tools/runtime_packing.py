"""What make_portable_runtime and make_runtime_packages share, and have beside them: which files are taken, and how.

Each pod copies all of it and pays by the file. So what is Python alone goes into zip files from which it is imported.

Invariants: nothing in an archive is compressed, because a module would be inflated at each import and zlib may be
missing; bytecode is never compared with its source; the same files make the same archive.
"""

from __future__ import annotations

import py_compile
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

_MARKERS = ("py.typed",)
"""Files that are not Python, and that nothing reads when it runs."""

_LEFT_OUT = ("cffi", "pycparser", "urllib3/contrib/emscripten", "tests")
"""Of cffi, its module in C is enough; beside an image's own that is of another version, it refuses to work."""
_CRYPTO = (
    "*.py", "Cipher/__init__.py", "Cipher/AES.py", "Cipher/ChaCha20*.py", "Cipher/_*.py", "Cipher/_chacha20.*",
    "Cipher/_raw_aes*", "Cipher/_raw_?[bft][bcr].*", "Hash/__init__.py", "Hash/Poly1305.py", "Hash/_poly1305.*",
    "Hash/_ghash*", "Hash/*BLAKE2s.*", "Random/*", "Util/*",
)  # fmt: skip
"""What the storage's client imports of pycryptodome, a tenth of it."""


def is_needed(file: PurePath) -> bool:
    """Return whether the runtime needs a file or folder of a wheel, whose path is given as in the wheel."""
    if file.suffix in (".pyc", ".pyi") or ".." in file.parts or file.parts[0].endswith(".dist-info"):
        return False
    if file.parts[0] == "Crypto":
        inside = PurePath(*file.parts[1:])
        return any(len(inside.parts) == pattern.count("/") + 1 and inside.match(pattern) for pattern in _CRYPTO)
    return not any(f"/{each}/" in f"/{file}/" for each in _LEFT_OUT)


def is_pure(place: Path) -> bool:
    """Return whether a module, or all of a package, is Python alone."""
    if place.is_file():
        return place.suffix == ".py"
    files = (file for file in place.rglob("*") if file.is_file())
    return place.suffix != ".dist-info" and all(file.suffix == ".py" or file.name in _MARKERS for file in files)


def pack(
    folder: Path,
    archive: Path,
    place: Path,
    *,
    wanted: Callable[[Path], bool] = is_pure,
    sources: Callable[[Path], bool] = lambda _: False,
    bytecode: bool = True,
) -> None:
    """Move modules and packages from a folder into a new archive.

    Args:
        folder: of the kind that stands on sys.path.
        archive: the zip file, which must not exist.
        place: where the archive will be when it is imported from, for tracebacks.
        wanted: whether a module or package of the folder is moved; the others stay.
        sources: whether it keeps its sources beside its bytecode: tracebacks show them.
        bytecode: compile with this Python; another one compiles the sources when it imports them.
    """
    moved = [each for each in sorted(folder.iterdir()) if wanted(each)]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for top in moved:
            kept = not bytecode or sources(top)
            for file in sorted(_files(top)):
                name = str(file.relative_to(folder))
                if file.suffix != ".py":
                    _write(target, name, file.read_bytes())
                    continue
                code = _compiled(file, str(place / name)) if bytecode else None
                if code is not None:
                    _write(target, f"{name}c", code)
                if kept or code is None:
                    _write(target, name, file.read_bytes())
    for top in moved:
        shutil.rmtree(top) if top.is_dir() else top.unlink()


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for file in top.rglob("*"):
        if file.is_file() and file.suffix != ".pyc" and file.name not in _MARKERS:
            yield file


def _compiled(file: Path, shown: str) -> bytes | None:
    """Return its bytecode; None for a template that is not Python."""
    with tempfile.NamedTemporaryFile(suffix=".pyc") as made:
        try:
            py_compile.compile(
                str(file), cfile=made.name, dfile=shown, doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )  # fmt: skip
        except py_compile.PyCompileError:
            return None
        return Path(made.name).read_bytes()


def _write(target: zipfile.ZipFile, name: str, data: bytes) -> None:
    target.writestr(zipfile.ZipInfo(name), data)  # its date is fixed
