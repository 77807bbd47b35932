"""Documents and their questions to hidden states, in two passes whatever the number of questions."""
