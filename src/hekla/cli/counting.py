"""How numbers of things are said: `1 pod`, `2 pods`."""


def counted(count: int, noun: str) -> str:
    """The number and the noun, which takes an s for any number but one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
