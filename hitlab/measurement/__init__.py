"""Walks an experiment against a client, keeps the checks, judges what came out."""
