"""How many pods each role is to have. Read `choose` first: the steps of the chain are there."""
