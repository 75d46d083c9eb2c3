"""Talks to a running server and reads what it says of itself; knows no experiment."""
