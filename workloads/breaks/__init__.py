"""One way to break a prefix cache per file."""
