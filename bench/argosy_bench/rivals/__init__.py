"""Rival scaling laws: beside the code that they follow, and what a setting of theirs costs."""
