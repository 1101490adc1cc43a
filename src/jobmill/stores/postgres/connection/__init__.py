"""Connections to the server: how they are made, shared and closed, and what their errors mean."""
