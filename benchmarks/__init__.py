"""Benchmarks: what the gateway costs, measured side by side in one run."""
