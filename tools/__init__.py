"""Programs that write files of this repository from its code; tests hold that what they wrote is up to date."""
