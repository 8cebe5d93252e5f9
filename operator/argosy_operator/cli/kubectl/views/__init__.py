"""Pure: from Kubernetes objects to the text that a verb prints."""
