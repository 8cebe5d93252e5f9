"""The steps of the chain in core/plan.py, which names them in their order. Each file is one idea.

Read targets.py first (how many pods each role is to have), then children.py and drain.py. draft.py
is what a step is given and what it reports.
"""
