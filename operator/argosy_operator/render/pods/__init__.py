"""What users ask of pods, laid over the pods that the operator renders.

kept.py says which defaults a Deployment's pods have; overlay.py changes a pod's template.
"""
