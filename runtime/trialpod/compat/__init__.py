"""Other systems' names for what trialpod does: code that imports them runs unchanged.

Processes that run user code call `activation.activate` with what the environment or a packed Trainable says.
"""
