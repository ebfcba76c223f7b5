"""What goes wrong in the demo."""


class DemoError(Exception):
    """The demo did not go as it should; the sentence says where."""
