"""The documents in results/: a run, a lab, how they are kept, compared and run again."""
