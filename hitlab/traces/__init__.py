"""A trace of requests in memory, and from files in the formats people have."""
