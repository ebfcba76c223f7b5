"""Is an API server: revision log on SQLite, watch hub, validation, admission, discovery, authentication."""
