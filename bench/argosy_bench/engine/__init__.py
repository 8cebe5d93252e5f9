"""Steps of one model, beside the limits of this machine and beside vLLM's CPU build."""
