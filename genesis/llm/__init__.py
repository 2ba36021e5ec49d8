"""Language models served from their files, many requests at once."""
