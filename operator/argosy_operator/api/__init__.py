"""The contract with users. Pure: no files, no clock, no logging.

Reading order: `v1alpha1` (what users write) → `model` (the base of its classes, and rules)
→ `fields` and `bounds` (texts and numbers) → `conditions` (what status says) → `crd`.
"""
