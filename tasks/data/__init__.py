"""Data modules of the tasks."""
