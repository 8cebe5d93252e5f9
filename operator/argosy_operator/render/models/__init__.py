"""What fetches a model: a Job and the claim that it fills (designs/0029-model-sources.md)."""
