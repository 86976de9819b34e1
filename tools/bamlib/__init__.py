"""Small helpers shared by the Python tools. Standard library only."""
