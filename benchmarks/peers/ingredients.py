"""What the peers are made of: Go programs from their modules, wheels from PyPI, a database from Debian.

`fetch` gets all of it, outside of the cluster's network, which leads to no index. Invariant: a folder in
.cache/bench-peers that has its final name is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from access import ROOT, images, layout, system
from scratch_environment import RAY

CACHE = layout.CACHE / "bench-peers"
RAY_PACKAGES = (RAY.replace("[tune]", "[default,tune]"),)
RAY_VERSION = RAY.rpartition("==")[2]
DATABASE = "postgresql-15"
_DATABASE_PACKAGES = (
    "libcom-err2", "libgssapi-krb5-2", "libicu72", "libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0",
    "libldap-2.5-0", "libpq5", "libsasl2-2", "libssl3", "libxml2", "postgresql-15", "postgresql-client-15",
)  # fmt: skip
_PROCESS_TOOLS = ("procps", "libproc2-0")
KATIB, KUBERAY = "katib", "kuberay"


def fetch(systems: Iterable[str]) -> None:
    """Get what is missing for these systems; minutes, once."""
    images.make_debian("bookworm")
    if KATIB in systems:
        program_folder(KATIB, build=True)
        early_stopping()
        database()
        process_tools()
    if KUBERAY in systems:
        program_folder(KUBERAY, build=True)
        ray()


def program_folder(name: str, *, build: bool = False) -> Path:
    """Return the folder with a peer's programs.

    Raises:
        ClusterError: They are not built, or cannot be.
    """
    return Path(_build_go(*([] if build else ["--where"]), name))


def module_folder(name: str) -> Path:
    """Return the folder of a peer's Go module, in which its manifests are."""
    return Path(_build_go("--source", name))


def module_version(name: str) -> str:
    """Return the version of a peer's Go module."""
    lines = (ROOT / "tools/go" / name / "go.mod").read_text().splitlines()
    return next(line.split()[2] for line in lines if line.startswith("require ") and "(" not in line)


def _build_go(*arguments: str) -> str:
    return system.run([ROOT / "tools/build_go", *arguments], timeout=3600).strip()


def ray() -> Path:
    """Return a folder for sys.path with Ray."""
    return _once(f"ray-{RAY_VERSION}", lambda folder: _install(folder, *RAY_PACKAGES))


def early_stopping() -> Path:
    """Return a folder for sys.path with what Katib's early stopping service imports, in the versions it asks for."""
    version = module_version(KATIB)
    asked = module_folder(KATIB) / "cmd/earlystopping/medianstop/v1beta1/requirements.txt"
    return _once(f"medianstop-{version}", lambda folder: _install(folder, "-r", str(asked)))


def _install(folder: Path, *what: str) -> None:
    command = [ROOT / ".venv/bin/uv", "pip", "install", "--quiet", "--python", ROOT / ".venv/bin/python"]
    system.run([*command, "--python-version", "3.11", "--target", folder, *what], timeout=1200)


def database() -> Path:
    """Return a folder with PostgreSQL's files as Debian's packages have them."""
    return _once(DATABASE, lambda folder: _extract(folder, _DATABASE_PACKAGES))


def process_tools() -> Path:
    """Return a folder with Debian's `pgrep`, which Katib's metrics collector calls when it stops a trial."""
    return _once("procps", lambda folder: _extract(folder, _PROCESS_TOOLS))


def _extract(folder: Path, packages: Sequence[str]) -> None:
    """Write the files of packages of Debian bookworm into a folder; no script of theirs is run."""
    root = Path(tempfile.mkdtemp(dir=CACHE, prefix=".debs-"))
    try:
        command = [
            "debootstrap",
            "--foreign",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            "bookworm",
            root,
        ]
        system.run(command, timeout=900)
        for package in packages:
            file = next((root / "var/cache/apt/archives").glob(f"{package}_*.deb"))
            system.run(["dpkg-deb", "--extract", file, folder])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "lib", "sbin"):
        if (folder / name).is_dir():  # in the image it is a link into /usr, which a folder would hide
            shutil.copytree(folder / name, folder / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder / name)


def database_version() -> str:
    """Return the version of the server that is in `database`."""
    control = database() / "usr/share/doc" / DATABASE / "changelog.Debian.gz"
    text = subprocess.run(["zcat", control], capture_output=True, text=True, check=True, timeout=30).stdout
    return text.split("(", 1)[1].split(")", 1)[0]


def _once(name: str, make: Callable[[Path], None]) -> Path:
    place = CACHE / name
    if not place.exists():
        system.say(f"fetching {name} (once)")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".making-") as folder:
            made = Path(folder, "made")
            made.mkdir(mode=0o755)
            make(made)
            os.rename(made, place)
    return place
