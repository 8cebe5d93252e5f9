"""The native CPU step: C sources, their build, and the choice of the library that works here."""
