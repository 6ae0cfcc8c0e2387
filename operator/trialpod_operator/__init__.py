"""Decides about experiments and runs them: the engine, the report service and the shells around them."""
