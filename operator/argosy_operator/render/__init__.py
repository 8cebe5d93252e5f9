"""The Kubernetes objects of a fleet, as functions of its spec. Nothing here reads or writes.

workload.py: the engine Deployment of a role; engines.py says how an engine is started. gateway.py:
the gateway and the Service. fetch.py: the Job that fetches a model. fleet.py: the objects besides.
common.py: metadata, pod security, images and templates of all of them.
"""
