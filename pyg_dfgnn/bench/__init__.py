"""Measurements of the operators; every timed call is checked first."""
