"""One run as a page for people: series over time and the figures, in one file without scripts.

Reading order: `series` (from a run to numbers over time) → `chart` (one picture) → `page`.
"""
