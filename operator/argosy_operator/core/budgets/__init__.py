"""GPU budgets that fleets share. Read `bid` (what a fleet asks for), `share`, then `allocate`."""
