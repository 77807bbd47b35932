"""Published kinds of decision models, a file each: how they lay out tokens, and how their answers are read."""
