"""`make test-attack`: a fleet under attack on every port, and what honest clients feel of it.

`processes` starts gateway and engines with proofs, `attackers` are processes that do harm, `honest`
measures what a user gets meanwhile, `smuggling` is the table of messages that hide a request.
"""
