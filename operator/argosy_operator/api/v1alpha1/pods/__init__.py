"""How pods are placed and equipped: an item of the spec's `pods`, and the chart's defaults.

settings.py has the fields, section.py whose pods they are of, resources.py, volumes.py and env.py
the parts. merged.py lays sections over each other; defaults.py is what the operator was installed
with. The names of fields are Kubernetes' own wherever they mean the same.
"""
