"""Data sets: families of problems, and the runner that draws and solves them."""
