from memory_backend import backend, plain_environment

__all__ = ["backend", "plain_environment"]
