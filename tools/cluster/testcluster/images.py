"""The images of the cluster, made without a registry and put into both nodes' containerd.

Invariants: an image is named by a hash of what it was made from, and is recreated exactly when that changes; nodes
get only the layers that they lack. The base is a Debian file system under the name that the Dockerfile's FROM uses.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import binaries, layout, nodes, pythons
from .layout import IMAGES, Node
from .system import ClusterError, run, say, unmount_below

_BASE_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
_SUITE = "bookworm"
DEBIANS = {
    "bookworm": ("bookworm", "python3"),
    "trixie": ("trixie", "python3"),
    "darknet": ("bookworm", "darknet"),
    "openmp": ("bookworm", "python3,libgomp1,libgfortran5"),
}
"""Images without trialpod for tests, as Debian has them: the suite, and what is installed of it."""
_ALWAYS = ("bookworm", "trixie")
_ADDED = {
    "python310": ("bookworm", "python3.10-amd64", "usr/local"),
    "sockeye": ("openmp", "sockeye", "usr/local/lib/python3.11/dist-packages"),
}
"""One of `DEBIANS` with one of `pythons.FETCHED`, and where that is in it."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEBIAN_SETTINGS = {"Env": [f"PATH={_PATH}"], "User": "65532:65532"}
_CERTIFICATES = Path("/etc/ssl/certs")
_PAUSE = r"""
/* What holds a pod's namespaces: it waits for a signal to end, and buries orphans. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal_number) { (void)signal_number; _exit(0); }
static void bury(int signal_number) { (void)signal_number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, bury);
  for (;;) pause();
}
"""
_EXTRAS = "operator,examples"
_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "tools/requirements_of",
            "tools/make_portable_runtime", "tools/make_runtime_packages", "tools/runtime_packing.py",
            "requirements/image.txt")  # fmt: skip
_SOURCE_FOLDERS = ("runtime", "operator", "examples/digits")


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


# One-file images


def _tar(files: Iterable[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data, mode in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _single_file_image(reference: str, program: Path, *, command: list[str]) -> bytes:
    """Return an OCI archive of an image that holds one static program and nothing else."""
    layer = _tar([(program.name, program.read_bytes(), 0o755)])
    return _image(reference, [layer], {"Entrypoint": [f"/{program.name}", *command], "Env": ["PATH=/"]})


def _image(reference: str, layers: list[bytes], settings: Mapping[str, Any]) -> bytes:
    """Return an OCI archive of an image."""
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
    ).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {"mediaType": f"{kind}.config.v1+json", "digest": _digest(config), "size": len(config)},
            "layers": [
                {"mediaType": f"{kind}.layer.v1.tar", "digest": _digest(layer), "size": len(layer)}
                for layer in layers
            ],
        }
    ).encode()
    return _archive(reference, manifest, [config, *layers])


def _archive(reference: str, manifest: bytes, blobs: Iterable[bytes | Path]) -> bytes:
    kind = "application/vnd.oci.image.manifest.v1+json"
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": kind,
                "digest": _digest(manifest),
                "size": len(manifest),
                "annotations": {"io.containerd.image.name": reference},
            }
        ],
    }
    contents = [blob.read_bytes() if isinstance(blob, Path) else blob for blob in blobs]
    return _tar(
        [
            ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644),
            ("index.json", json.dumps(index).encode(), 0o644),
            *((f"blobs/sha256/{_digest(data)[7:]}", data, 0o644) for data in [manifest, *contents]),
        ]
    )


def _import(node: Node, archive: bytes) -> None:
    # A path that containerd's client can read, in memory.
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".tar") as file:
        file.write(archive)
        file.flush()
        nodes.ctr(node, "images", "import", file.name)


def _present(node: Node, reference: str) -> bool:
    return reference in nodes.ctr(node, "images", "list", "--quiet").split()


def import_pause(node: Node) -> None:
    """Give a node the image that every pod's sandbox is made from."""
    if _present(node, layout.PAUSE_IMAGE):
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=IMAGES) as folder:
        source, program = Path(folder) / "pause.c", Path(folder) / "pause"
        source.write_text(_PAUSE)
        run(["gcc", "-static", "-Os", "-s", "-o", program, source])
        archive = _single_file_image(layout.PAUSE_IMAGE, program, command=[])
    _import(node, archive)


def import_minio(node: Node) -> None:
    """Give a node MinIO's image."""
    if _present(node, layout.MINIO_IMAGE):
        return
    with tempfile.TemporaryDirectory(dir=IMAGES) as folder:
        program = Path(folder) / "minio"
        os.link(binaries.minio(), program)
        _import(node, _single_file_image(layout.MINIO_IMAGE, program, command=["server"]))


def import_program(reference: str, program: Path, name: str) -> None:
    """Give an image of one static program to the nodes that have none of that reference.

    Args:
        reference: of the image, with registry and a tag that says which program it is.
        program: the binary.
        name: of the file in the image, which is its entry point.
    """
    lacking = [node for node in layout.NODES if not _present(node, reference)]
    if not lacking:
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=IMAGES) as folder:
        file = Path(folder) / name
        shutil.copyfile(program, file)
        archive = _single_file_image(reference, file, command=[])
    for node in lacking:
        _import(node, archive)


def import_files(reference: str, files: Iterable[tuple[str, bytes, int]]) -> None:
    """Give an image of these files (path, contents, mode) to the nodes that have none of that reference."""
    lacking = [node for node in layout.NODES if not _present(node, reference)]
    if lacking:
        archive = _image(reference, [_tar(files)], {"Env": ["PATH=/"]})
        for node in lacking:
            _import(node, archive)


def _debian(name: str) -> tuple[str, Path]:
    """Return the reference of one of `DEBIANS`, and where its archive is."""
    key = hashlib.sha256(f"{DEBIANS[name]} 2".encode()).hexdigest()[:12]
    return f"docker.io/trialpod/debian-{name}:{key}", IMAGES / f"debian-{name}-{key}.tar"


def make_debian(name: str) -> None:
    """Make one of `DEBIANS`, if it was not made yet; needs the network."""
    reference, archive = _debian(name)
    if archive.exists():
        return
    suite, packages = DEBIANS[name]
    say(f"making an image of Debian {suite} with {packages}, by debootstrap (once; minutes)")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=IMAGES) as folder:
        root, layer = Path(folder, "root"), Path(folder, "layer.tar")
        run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, root], timeout=900)
        for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / waste, ignore_errors=True)
        run(["tar", "--numeric-owner", "--directory", root, "--create", "--file", layer, "."], timeout=300)
        finished = Path(folder, "image.tar")
        finished.write_bytes(_image(reference, [layer.read_bytes()], _DEBIAN_SETTINGS))
        os.rename(finished, archive)


def import_debian(name: str) -> str:
    """Give the nodes one of `DEBIANS`; return its reference.

    Raises:
        ClusterError: It was not made.
    """
    reference, archive = _debian(name)
    if not archive.exists():
        raise ClusterError(f"the image debian-{name} was not made; run tools/cluster/command debian {name}")
    for node in layout.NODES:
        if not _present(node, reference):
            _import(node, archive.read_bytes())
    return reference


def import_packages(folder: Path) -> str:
    """Give the nodes Debian's Python with the packages of an environment's ``site-packages``; return the reference.

    For scripts that need libraries: pods bring trialpod themselves. The environment's Python must be of Debian's
    minor version, since packages have compiled parts.
    """
    key = hashlib.sha256("\n".join(sorted(each.name for each in folder.iterdir())).encode()).hexdigest()[:12]
    reference = f"docker.io/trialpod/packages:{key}"
    settings = {"Env": [f"PATH={_PATH}", "PYTHONPATH=/opt/packages"], "User": "65532:65532"}
    leave = ("*.pth", "__editable__*", "__pycache__", "pip", "pip-*", "tests")
    _import_upon_debian("bookworm", reference, folder, "opt/packages", settings, leave)
    return reference


def import_added(name: str) -> str:
    """Give the nodes one of the images of `_ADDED`; return its reference."""
    debian, what, place = _ADDED[name]
    folder = pythons.FETCHED[what]()
    key = hashlib.sha256(f"{_debian(debian)[0]} {folder.name}".encode()).hexdigest()[:12]
    reference = f"docker.io/trialpod/{name}:{key}"
    _import_upon_debian(debian, reference, folder, place, _DEBIAN_SETTINGS)
    return reference


def _import_upon_debian(
    debian: str, reference: str, folder: Path, place: str, settings: Mapping[str, Any], leave: Iterable[str] = ()
) -> None:
    """Give the nodes that lack it an image of `DEBIANS` with a folder in a place, but for names of these patterns."""
    lacking = [node for node in layout.NODES if not _present(node, reference)]
    if not lacking:
        return
    make_debian(debian)
    with tarfile.open(_debian(debian)[1]) as archive:
        file = archive.extractfile(max(archive.getmembers(), key=lambda member: member.size))  # its one layer
        assert file is not None
        base = file.read()
    patterns = tuple(leave)

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name).name
        return None if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) else member

    added = io.BytesIO()
    with tarfile.open(fileobj=added, mode="w") as target:
        target.add(folder, place, filter=wanted)
    made = _image(reference, [base, added.getvalue()], settings)
    for node in lacking:
        _import(node, made)


# Images from the Dockerfile


def _buildah(*arguments: str | Path, timeout: float = 900, stream: bool = False) -> str:
    driver = IMAGES / "storage-driver"
    if not driver.exists():
        IMAGES.mkdir(parents=True, exist_ok=True)
        driver.write_text("overlay" if nodes.overlay_works(IMAGES) else "vfs")
    return run(
        [
            "buildah", "--root", IMAGES / "storage", "--runroot", layout.RUN / "buildah",
            "--storage-driver", driver.read_text(), *arguments,
        ],
        timeout=timeout,
        stream=stream,
        # Caches and locks that it would keep under /root otherwise.
        environment={"TMPDIR": str(IMAGES)},
    )  # fmt: skip


def _ensure_base() -> None:
    key = hashlib.sha256(f"{_SUITE} {_BASE_PACKAGES} 1".encode()).hexdigest()[:12]
    marker = IMAGES / "base-key"
    if marker.exists() and marker.read_text() == key:
        return
    say(f"making the base image, a Debian {_SUITE} with Python, by debootstrap (once; a minute)")
    started = time.monotonic()
    root = IMAGES / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    run(["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", _SUITE, root], timeout=900)
    for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / waste, ignore_errors=True)
        (root / waste).mkdir(parents=True)
    _buildah("rmi", "--all", "--force")
    container = _buildah("from", "scratch").strip()
    try:
        _buildah("add", "--quiet", container, root, "/")
        _buildah("commit", "--quiet", container, layout.BASE_IMAGE)
    finally:
        _buildah("rm", container)
    shutil.rmtree(root)
    marker.write_text(key)
    say(f"made the base image in {time.monotonic() - started:.0f} s")


def image_key() -> str:
    """Return a hash of everything that the image is made from."""
    digest = hashlib.sha256((_EXTRAS + _BASE_PACKAGES).encode())
    files = [layout.ROOT / name for name in _SOURCES]
    for folder in _SOURCE_FOLDERS:
        files += [
            path
            for path in (layout.ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        ]
    for path in sorted(files):
        if path.exists():
            digest.update(f"{path.relative_to(layout.ROOT)} {path.stat().st_mode & 0o111}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def build() -> str:
    """Build the image if what it is made from has changed; return its key.

    Raises:
        ClusterError: The build fails.
    """
    for name in _ALWAYS:
        make_debian(name)
    key = image_key()
    marker = IMAGES / "image-key"
    if marker.exists() and marker.read_text() == key:
        return key
    _ensure_base()
    say("building the image trialpod/trialpod:test (seconds; minutes when dependencies have changed)")
    started = time.monotonic()
    marker.unlink(missing_ok=True)
    # The machine's certificates and index: a RUN step reaches packages as the machine itself does.
    common: list[str | Path] = [
        "bud", "--quiet", "--layers", "--isolation", "chroot", "--network", "host", "--pull-never",
        "--build-arg", f"EXTRAS={_EXTRAS}", "--build-arg", f"BASE={layout.BASE_IMAGE}",
    ]  # fmt: skip
    if (_CERTIFICATES / "ca-certificates.crt").exists():
        common += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        common += ["--build-arg", f"PIP_CERT={_CERTIFICATES}/ca-certificates.crt"]
    for name in ("PIP_INDEX_URL", "PIP_TRUSTED_HOST"):
        if os.environ.get(name):
            common += ["--build-arg", f"{name}={os.environ[name]}"]
    # Named, so that the removal of nameless images below leaves this layer alone.
    for target, name in (("dependencies", "localhost/trialpod-dependencies"), ("examples", layout.IMAGE)):
        try:
            _buildah(*common, "--target", target, "--tag", name, layout.ROOT)
        except ClusterError as error:
            raise ClusterError(f"the image could not be built\n{error.message}") from error
    target_folder = IMAGES / "image"
    new = IMAGES / "image.new"
    shutil.rmtree(new, ignore_errors=True)
    _buildah("push", "--quiet", "--disable-compression", layout.IMAGE, f"oci:{new}:test")
    shutil.rmtree(target_folder, ignore_errors=True)
    os.rename(new, target_folder)
    _buildah("rmi", "--prune", "--force")
    marker.write_text(key)
    say(f"built the image in {time.monotonic() - started:.0f} s")
    return key


def import_image(node: Node, key: str) -> None:
    """Give a node the built image: only the layers that it lacks."""
    marker = node.state / "image-key"
    if marker.exists() and marker.read_text() == key:
        return
    folder = IMAGES / "image"
    manifest_digest = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
    manifest = (folder / "blobs/sha256" / manifest_digest[7:]).read_bytes()
    parts = json.loads(manifest)
    there = set(nodes.ctr(node, "content", "list", "--quiet").split())
    wanted = [part["digest"] for part in (parts["config"], *parts["layers"]) if part["digest"] not in there]
    _import(node, _archive(layout.IMAGE, manifest, [folder / "blobs/sha256" / digest[7:] for digest in wanted]))
    marker.write_text(key)


def release() -> None:
    """Unmount what buildah keeps mounted between builds."""
    unmount_below(IMAGES)
