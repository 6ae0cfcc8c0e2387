"""`OptunaSearch` and its parts. Optuna itself is imported when a search is made."""

from trialpod.tune.search.optuna.optuna_search import OptunaSearch

__all__ = ["OptunaSearch"]
