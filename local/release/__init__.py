"""What users install, made from one commit (`make release`)."""
