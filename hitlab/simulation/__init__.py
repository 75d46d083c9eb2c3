"""Eviction policies over traces: replays, hit-ratio curves, sweeps."""
