"""`AutoSearch` and its parts. NumPy is imported when a search is made."""

from trialpod.tune.search.auto.auto_search import AutoSearch

__all__ = ["AutoSearch"]
