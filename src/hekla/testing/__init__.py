"""The test kit: worlds, builders, playbooks, conformance suites. Imported by tests only."""
