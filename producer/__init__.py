"""Archives in, results out. Never imports torch."""
