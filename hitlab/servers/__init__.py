"""Starts servers of our own, emulated or real on this machine's CPU; never talks to them as a client."""
