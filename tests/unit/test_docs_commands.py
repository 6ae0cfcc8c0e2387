"""Every `trialpod` command in a code block of the documentation is one that the command line accepts."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialpod.cli.main import load_command, parser_of

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```(\S*).*\n((?:.*\n)*?) *```$", re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of trialpod in shell blocks and in blocks without a language."""
    for language, block in BLOCK.findall(text):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"\s*(?:\$ )?(?:[A-Z_0-9]+=\S+ +)*trialpod +([a-z].*)", line)
            if found and "[" not in found[1]:  # not a synopsis
                yield shlex.split(re.split(r" +[|>#] | && ", found[1])[0], comments=True)


def refusal(words: list[str]) -> str:
    """Return what the command line says against a command, "" when it accepts it."""
    parser = parser_of(load_command(words[0]))
    own = words[1 : words.index("--")] if "--" in words else words[1:]  # what follows is the program's or script's
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(own)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_printed_commands_are_accepted(page: Path) -> None:
    wrong = {shlex.join(words): said for words in commands(page.read_text()) if (said := refusal(words))}
    assert wrong == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "```sh\nTRIALPOD_X=1 trialpod run a.yaml --no-such-option  # why\n```\n```yaml\ntrialpod: {}\n```\n"
    (words,) = commands(text)
    assert words == ["run", "a.yaml", "--no-such-option"]
    assert "--no-such-option" in refusal(words)
