"""What to send and what arithmetic says of it; knows no server."""
