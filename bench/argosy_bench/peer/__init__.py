"""Our engine beside vLLM's CPU build and beside the floor of this machine."""
