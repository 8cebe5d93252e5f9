"""What a spec that the API server takes will not do, in sentences for `kubectl argosy lint`."""
