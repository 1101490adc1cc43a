"""Jobmill, its peers, and older commits of Jobmill, measured side by side."""
