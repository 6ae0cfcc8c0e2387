"""A hook of mkdocs: the README becomes the first page, and links that leave docs/ become plain text or source links.

Set TRIALPOD_SOURCE_URL to the address of the source tree to have links to it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Files, config: Any) -> Files:
    """Add the README as index.md, with its links as seen from docs/."""
    text = (ROOT / "README.md").read_text().replace("](docs/", "](")
    text = re.sub(r"\]\((?!https?:|#|\w[\w-]*\.md)([^)]+)\)", r"](../\1)", text)
    text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md", r"](../\1.md", text)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links that leave docs/."""
    source = os.environ.get("TRIALPOD_SOURCE_URL", "").rstrip("/")

    def rewrite(match: re.Match[str]) -> str:
        text, target = match[1], match[2].removeprefix("../")
        return f"[{text}]({source}/{target})" if source else text

    return re.sub(r"\[([^]]*)\]\((\.\./[^)\s]+)\)", rewrite, markdown)
