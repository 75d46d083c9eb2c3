"""One experiment per file, as data: a question, a workload, what to sweep."""
