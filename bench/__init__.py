"""The benchmark: Jobmill, its peers and the bare database side by side, in one run, alternating, several rounds.

The walk: `__main__` (the command) > `measures/` (what is measured, and the targets) > `lab` (rounds, files, budget) >
`child` (each run is a function in a fresh process) > `ours/` and `peers/` (those functions) > `figures` > `report`.
"""
