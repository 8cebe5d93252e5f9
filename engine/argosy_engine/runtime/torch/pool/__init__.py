"""How large the KV pool is, and what computes attention on it."""
