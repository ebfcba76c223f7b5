"""One suite per port: every implementation of a contract passes the same tests."""
