"""Archives in, results out. Never imports torch."""

from producer.api import score

__all__ = ["score"]
