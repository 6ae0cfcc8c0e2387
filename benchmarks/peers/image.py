"""Images of the peers: folders laid upon one of the test cluster's Debian images, with an entry point.

Invariant: a reference has a hash of what the image was made from, so a node that has the reference has the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from access import images, layout, nodes

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LEFT_OUT = {"__pycache__", "tests", "pip"}


@dataclass(frozen=True)
class Image:
    """What an image is made of, upon Debian bookworm with Python.

    Args:
        name: of the image.
        folders: folders of this machine, and where they are in the image.
        files: path in the image, its contents and mode; a target in place of contents makes a symbolic link.
    """

    name: str
    folders: Mapping[Path, str]
    files: Sequence[tuple[str, bytes | str, int]] = ()
    entry_point: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    user: str = "65532:65532"

    def settings(self) -> dict[str, object]:
        """Return the image's configuration as OCI spells it."""
        variables = [f"PATH={_PATH}", *(f"{name}={value}" for name, value in self.variables.items())]
        return {
            "Env": variables,
            "User": self.user,
            **({"Entrypoint": [*self.entry_point]} if self.entry_point else {}),
        }

    def key(self) -> str:
        """Return a hash of what it is made from; of a folder, the names in it, which have versions."""
        parts = [json.dumps(self.settings(), sort_keys=True), "2"]
        for folder, place in self.folders.items():
            parts += [place, *sorted(os.listdir(folder))]
        for path, data, mode in self.files:
            contents = data.encode() if isinstance(data, str) else data
            parts.append(f"{path} {mode} {type(data)} {hashlib.sha256(contents).hexdigest()}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def give(image: Image) -> str:
    """Give the nodes an image, and return its reference."""
    base = images.import_debian("bookworm")
    reference = f"docker.io/trialpod/{image.name}:{image.key()}"
    lacking = [node for node in layout.NODES if reference not in nodes.ctr(node, "images", "list", "--quiet").split()]
    if lacking:
        layout.IMAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=layout.IMAGES) as folder:
            archive = _archive(image, reference, base, Path(folder))
            for node in lacking:
                nodes.ctr(node, "images", "import", archive, timeout=600)
    return reference


def _archive(image: Image, reference: str, base: str, folder: Path) -> Path:
    """Write an archive as ``docker save`` does: the Debian's one layer, and what is laid upon it."""
    added, below, archive = folder / "added.tar", folder / "below.tar", folder / "image.tar"
    with tarfile.open(layout.IMAGES / f"{base.rpartition('/')[2].replace(':', '-')}.tar") as made:
        layer = made.extractfile(max(made.getmembers(), key=lambda member: member.size))
        assert layer is not None
        below.write_bytes(layer.read())
    with tarfile.open(added, "w") as target:
        for source, place in image.folders.items():
            for name in sorted(os.listdir(source)):
                target.add(source / name, f"{place}/{name}".lstrip("/"), filter=_wanted)
        for path, data, mode in image.files:
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = mode
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                target.addfile(member)
            else:
                member.size = len(data)
                target.addfile(member, io.BytesIO(data))
    layers = (below, added)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": image.settings(),
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": [layer.name for layer in layers]}]
    with tarfile.open(archive, "w") as target:
        for layer in layers:
            target.add(layer, layer.name)
        for name, content in (("config.json", config), ("manifest.json", manifest)):
            encoded = json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(encoded)
            target.addfile(member, io.BytesIO(encoded))
    return archive


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    return None if Path(member.name).name in _LEFT_OUT else member


def _digest(file: Path) -> str:
    with open(file, "rb") as data:
        return f"sha256:{hashlib.file_digest(data, 'sha256').hexdigest()}"
