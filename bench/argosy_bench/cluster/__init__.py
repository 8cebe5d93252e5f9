"""What faults, attacks and the edits of a first day cost whole fleets."""
