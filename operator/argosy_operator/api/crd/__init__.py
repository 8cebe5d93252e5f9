"""The CustomResourceDefinitions, generated from the models of `api/v1alpha1`. Pure: no files.

Reading order: `definition` (both CRDs as objects) → `schema` (from pydantic's JSON schema to a
structural one) → `columns` (what `kubectl get` prints) → `manifest` (as YAML for crds/ and the
chart). `docs/generate.py` writes the files, `argosy operator crds` prints them.
"""
