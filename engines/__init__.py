"""One engine per file: its HTTP dialect, counters, cache model, and how it starts on a CPU."""
