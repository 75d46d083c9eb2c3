"""Records what an engine answers, and compares a cache model with it."""
