"""`python3 dev.py bench --against COMMIT`: the working tree and an older commit, measured in alternation."""
