"""Complete trainings in one file each, written to be read: what ``genesis train`` runs."""
