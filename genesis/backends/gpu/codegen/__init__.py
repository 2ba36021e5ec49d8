"""From kernel IR to Triton source."""
