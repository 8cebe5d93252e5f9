"""Other scaling laws behind the same protocol (`law.Law`), to compare ours with."""
