"""What runs the steps: the engine thread, the timing runner, the torch runner."""
