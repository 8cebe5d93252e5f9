"""What a round knows and may ask for. Read snapshot.py first, then actions.py and pods.py."""
