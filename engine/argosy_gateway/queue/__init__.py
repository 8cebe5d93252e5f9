"""Which requests wait in the gateway, and which of them goes next. `room` is the shell, the rest is
pure: the clock and the loads are passed in (designs/0009-queue.md)."""
