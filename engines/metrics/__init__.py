"""What each engine counts on its /metrics page, by name and version; one file an engine."""
