"""A tab of the browser that remembers what went wrong in it."""

from __future__ import annotations

from typing import Any

FOREIGN_NAME = "elsewhere.test"
"""A name that the browser resolves to this machine, as an attacker's name server could."""

TIMEOUT_MS = 150_000
"""Of each wait for the page. Playwright's 30 s are too short beside load: the importance of parameters took 37 s."""


def new_context(browser: Any, **options: Any) -> Any:
    """Return a window of the browser that shares nothing with others, with time enough on a busy machine."""
    context = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    return context


class Opened:
    """A tab that remembers what went wrong in it."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        page.on(
            "console", lambda line: self.problems.append(line.text) if line.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def show(self, address: str, expect: str = ".grid-row[data-id]") -> Any:
        self.page.goto("about:blank")
        self.page.goto(self.base + address)
        self.page.wait_for_selector(expect)
        return self.page
