"""One prompt-set builder per file; breaks/ holds one way to break a cache per file."""
