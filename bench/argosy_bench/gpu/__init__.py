"""`make bench-gpu`: the engine on this machine's GPU."""
