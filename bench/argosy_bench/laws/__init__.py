"""What laws cost: their thresholds, their parts, and laws beside each other at equal attainment."""
