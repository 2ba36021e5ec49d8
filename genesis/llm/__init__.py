"""Language models as people have them: from their files, many requests at once."""
