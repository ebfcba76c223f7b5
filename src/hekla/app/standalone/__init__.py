"""Hekla's features as processes of their own against any Kubernetes: what `hekla run` and `hekla install` stand on."""
