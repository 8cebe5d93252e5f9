"""Which gateways use the settings of the spec. `step` says when to look again, `settings` compares
what gateways say with what was rendered."""
