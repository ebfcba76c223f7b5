"""What is wrong with an object, in Kubernetes' words: one module a family of fields; `kind_rules.py` picks them."""
