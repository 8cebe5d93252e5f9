"""What turns plans into tokens: the engine thread, the timing runner, the torch runner."""
