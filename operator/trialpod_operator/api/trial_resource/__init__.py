"""An object of another kind that runs a trial: kind, placeholders, conditions, pod template."""
