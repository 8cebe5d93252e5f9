"""Scaling laws on recorded traces, and on shapes of load that every law must follow."""
