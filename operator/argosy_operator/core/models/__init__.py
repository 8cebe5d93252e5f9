"""Models that a Job fetches before the engines start (designs/0029-model-sources.md)."""
