"""`argosy reproduce`: what four texts claim, played again in virtual time.

The engine's own scheduler (`argosy_engine.core`) plans each step; a timing model says how long the
step takes (`timing`). `play` lets requests through both. A study is a function of a seed that
returns named figures (`chunks`, `sonnet`, `grid`); `items` says which study shows which claim.

    argosy reproduce --list
    argosy reproduce B10
    argosy reproduce --all --json build/reproduce.json
"""
