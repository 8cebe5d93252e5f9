"""A pod goes from prefill to decode or back, without a new process: designs/0013-role-flip.md."""
