"""Language models served from their files."""
