"""Amounts of resources as people type them: `cpu=1000m,memory=100Mi`."""

from hekla.cli.main import EXIT_USAGE, CommandError


def parse_amounts(text: str, option: str) -> dict[str, str]:
    """Resource to amount; CommandError that names the option and the part that is wrong."""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, amount = part.strip().partition("=")
        if not equals or not name or "=" in amount:
            raise CommandError(
                f'{option} is "{text}": "{part}" is not RESOURCE=AMOUNT; write for instance cpu=1000m,memory=100Mi',
                EXIT_USAGE,
            )
        if name in found:
            raise CommandError(f'{option} is "{text}": {name} is given twice; leave one of them out', EXIT_USAGE)
        found[name] = _checked(amount, f'{option} is "{text}": {name}')
    return found


def _checked(amount: str, where: str) -> str:
    from hekla.lib import quantity

    if not quantity.is_valid(amount):
        message = f'{where} has amount "{amount}", which is no quantity; write a number such as 2, 500m, 100Mi or 1e3'
        raise CommandError(message, EXIT_USAGE)
    if quantity.parse(amount).value < 0:
        raise CommandError(f"{where} is {amount}; an amount is not negative", EXIT_USAGE)
    return amount
