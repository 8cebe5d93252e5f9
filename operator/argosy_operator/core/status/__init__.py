"""What the status of a fleet says. Read table.py first: it decides every condition.

compose.py puts a status together from facts.py (what is true of the round), table.py (conditions
and their messages), problems.py (what keeps pods and objects from being as specified) and
numbers.py.
"""
