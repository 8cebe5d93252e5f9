"""Measurements of the engine alone."""
