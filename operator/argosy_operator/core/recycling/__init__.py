"""The step that replaces a pod whose handovers fail with partners that are in order."""
