"""Metrics: histograms, and Prometheus' text format. What is measured is decided where it happens."""
