"""Which GPU type each role runs on. Read `step` first: it chooses, `noted` is where choices are."""
