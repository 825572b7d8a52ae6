"""The pure core: no I/O, no clock, no randomness; every rule of the product that can be a function is one here."""
