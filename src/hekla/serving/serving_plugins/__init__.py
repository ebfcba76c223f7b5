"""What changes pods of a ModelServing before they are made. `registry.py` lists them; `plugin.py` says what one is."""
