"""What happens to a fleet.

`events` carries out each event of the schedule. `network` cuts, slows and damages what reaches a
pod, with `corrupting` as the process that turns bits over. `operators` kills the operator between
two of its writes, which it reads from the API server's log.
"""
