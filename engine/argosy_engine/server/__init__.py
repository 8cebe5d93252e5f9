"""The engine's HTTP side: OpenAI API on one port, administration and metrics on another."""
