"""The messages between an attempt and the engine, and the client that sends them."""
