"""Records what an engine answers, and holds a cache model against it."""
