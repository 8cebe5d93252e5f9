"""A GPU budget that fleets share. Read `bid` (what a fleet asks for), then `allocate`."""
