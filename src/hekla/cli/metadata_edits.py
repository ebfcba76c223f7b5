"""Changes of labels and annotations as people write them: KEY=VALUE sets, KEY- removes. `label` and `annotate` share it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from hekla.cli.main import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hekla.cli.connection import Connection
    from hekla.cli.targets import Target

MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class MetadataEdit:
    """What is to become of `metadata.labels` or `metadata.annotations`."""

    field: str
    done: str
    """How it is said: labeled, annotated."""

    changes: dict[str, str | None]
    """None removes."""

    may_overwrite: bool

    async def all(
        self, connection: "Connection", words: Sequence[str], namespace: str, *, selector: str, every: bool
    ) -> None:
        """Change every object that the words mean."""
        from hekla.cli.targets import targets_of

        for target in await targets_of(connection, words, namespace, selector=selector, every=every):
            await self._one(connection, target)

    async def _one(self, connection: "Connection", target: "Target") -> None:
        found = await connection.client.request("GET", target.path)
        present: dict[str, str] = found["metadata"].get(self.field) or {}
        for key, value in self.changes.items():
            if value is not None and key in present and present[key] != value and not self.may_overwrite:
                raise CommandError(
                    f'{target.label} has {self.field} {key}="{present[key]}" already; --overwrite replaces it'
                )
        patch: dict[str, Any] = {"metadata": {self.field: self.changes}}
        if not self.may_overwrite:  # what was looked at is what is changed
            patch["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await connection.client.request("PATCH", target.path, patch, content_type=MERGE_PATCH)
        is_same = all(present.get(key) == value for key, value in self.changes.items())
        typer.echo(f"{target.label} {'not ' + self.done if is_same else self.done}")


def split_words(words: Sequence[str], example: str) -> tuple[list[str], dict[str, str | None]]:
    """The words that name objects, and the changes behind them."""
    named: list[str] = []
    changes: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key:
            changes[key] = value
        elif word.endswith("-") and len(word) > 1 and len(named) > 0:
            changes[word[:-1]] = None
        elif changes:
            raise CommandError(f'"{word}" stands behind the changes; name objects first, as in `{example}`', EXIT_USAGE)
        else:
            named.append(word)
    if not named or not changes:
        raise CommandError(f"say which objects and what to change, as in `{example}`", EXIT_USAGE)
    return named, changes
