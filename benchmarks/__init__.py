"""Programs that compare hitlab's speed with something else, both sides in one run; see README.md."""
