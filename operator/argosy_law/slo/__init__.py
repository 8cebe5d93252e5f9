"""What is promised of requests, and what is left of it."""
