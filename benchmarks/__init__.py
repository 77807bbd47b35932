"""Measurements: each prints what it ran on, a table, and one JSON line last."""
