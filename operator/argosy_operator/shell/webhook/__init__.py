"""The webhook: the API server asks it about writes of fleets, and it answers with warnings.

A process of its own with an account of its own (designs/0032-warnings.md).
"""
