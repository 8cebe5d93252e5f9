"""One file per verb: it fetches objects, hands them to `views` and prints the answer."""
