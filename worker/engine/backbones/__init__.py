"""The networks under the families, one file a kind."""
