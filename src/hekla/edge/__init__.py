"""What every front door shares: who asks, how much they may ask, and the state that several doors keep in common."""
