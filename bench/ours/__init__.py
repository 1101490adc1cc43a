"""Jobmill's side of each measure: functions that run in a fresh process."""
