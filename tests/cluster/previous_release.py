"""The release before this one, for tests of upgrades: its chart, and its image in both nodes.

It is the newest tag of a release, or, as long as there is none, a commit. `python previous_release.py` builds it
before the tests: they run in the cluster's network namespace, from which no package index can be reached.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster_access import ROOT
from testcluster import cluster, images, layout, nodes

FIRST = "e39259b"
"""Stands for the release before, as long as nothing is tagged."""

REPOSITORY, TAG = "docker.io/trialpod/trialpod", "previous"
IMAGE = f"{REPOSITORY}:{TAG}"
FOLDER = layout.CACHE / "previous-release"


def commit() -> str:
    """Return the commit that the release before was made from."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^", check=False)
    return _git("rev-parse", f"{tag or FIRST}^{{commit}}")


def build() -> Path:
    """Build the image of the release before, unless it is there, and return the folder with it and its tree."""
    source = commit()
    folder = FOLDER / source
    if not (folder / "image.tar").exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        _unpack(source, folder / "tree")
        _build(folder / "tree", folder / "image.tar")
    return folder


def ensure() -> Path:
    """Give both nodes the image of the release before and return the folder of its chart."""
    with cluster.lock():
        folder = build()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: _import(node, folder / "image.tar"), layout.NODES))
    return folder / "tree/charts/trialpod"


def _git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=check)
    return done.stdout.strip()


def _unpack(source: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", source], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")


def _build(tree: Path, archive: Path) -> None:
    images._ensure_base()
    certificates = images._CERTIFICATES
    images._buildah(
        "bud", "--quiet", "--layers", "--isolation", "chroot", "--network", "host", "--pull-never",
        "--build-arg", f"EXTRAS={images._EXTRAS}", "--build-arg", f"BASE={layout.BASE_IMAGE}",
        "--build-arg", f"PIP_CERT={certificates}/ca-certificates.crt",
        "--volume", f"{certificates}:{certificates}:ro",
        "--target", "examples", "--tag", IMAGE, tree,
    )  # fmt: skip
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    images._buildah("push", "--quiet", "--disable-compression", IMAGE, f"oci-archive:{new}:{IMAGE}")
    new.rename(archive)


def _import(node: layout.Node, archive: Path) -> None:
    if not images._present(node, IMAGE):
        nodes.ctr(node, "images", "import", archive)


if __name__ == "__main__":
    with cluster.lock():
        build()
