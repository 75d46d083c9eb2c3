"""Pictures, and the page of kept results."""
