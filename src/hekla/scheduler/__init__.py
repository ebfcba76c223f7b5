"""The loop that lets the placement engine run a cluster: events in, binds and reasons out."""
