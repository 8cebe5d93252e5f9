"""What the status of a fleet says. Read table.py first: it decides every condition.

compose.py puts a status together from findings.py (the round, looked at once), facts.py and
sentences.py (facts and messages for the table), decided.py (the part of the scaling law's
decision), problems.py (what keeps pods and objects from being as specified) and numbers.py.
"""
