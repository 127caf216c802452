"""Measurements of the operators, beside those of PyG's own message passing."""
