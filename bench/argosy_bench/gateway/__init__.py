"""What the gateway costs, what it keeps up under attack of load, and what a handover costs."""
