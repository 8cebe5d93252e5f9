"""A scaling law's values as text: `record` writes and reads any, `kept` what outlives a restart."""
