"""Kubernetes' own kinds as data: their schemas (see NOTICE) and the table of what is served."""
