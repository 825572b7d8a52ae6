"""Training samples: hand-written cases, and properties against a simulation of single tokens."""
