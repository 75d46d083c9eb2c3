"""A server that answers as an engine does, around a model of its cache."""
