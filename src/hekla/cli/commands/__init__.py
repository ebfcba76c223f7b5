"""One module per command: its docstring is the help, its `run` is the command."""
