"""The server's side of each engine's dialect, one engine per file, around the cache model of hitlab/cache/."""
