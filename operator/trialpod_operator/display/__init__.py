"""Ways of showing a running experiment; `choose_display` picks one. rich is imported only for the live table."""

from __future__ import annotations

from trialpod_operator.display.base import Display
from trialpod_operator.display.choose import choose_display
from trialpod_operator.display.events import Event

__all__ = ["Display", "Event", "choose_display"]
