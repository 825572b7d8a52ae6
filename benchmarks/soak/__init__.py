"""Soak: sessions come and go for a while, much goes wrong meanwhile, and afterwards nothing may be left of it."""
