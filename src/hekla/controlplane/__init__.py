"""The controllers that a real cluster brings; they run in the embedded mode only."""
