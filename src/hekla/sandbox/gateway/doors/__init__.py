"""The front doors, one dialect each; `..front` finds the door of a request."""
