"""Registered operators, one file per family."""
