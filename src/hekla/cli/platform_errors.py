"""What goes wrong with a platform's own files, in words: the commands that start, stop and find platforms use it."""

from collections.abc import Iterator
from contextlib import contextmanager

from hekla.cli.main import CommandError


@contextmanager
def in_words(*kinds: type[Exception]) -> Iterator[None]:
    """Turn what the operating system and the data directory refuse, and errors of `kinds`, into one sentence."""
    from hekla.app.data_directory import DataDirectoryError, file_trouble

    known: tuple[type[Exception], ...] = (DataDirectoryError, *kinds)
    try:
        yield
    except known as error:
        raise CommandError(str(error)) from None
    except BrokenPipeError:
        raise  # nobody reads what we print any more: `main` knows
    except OSError as error:
        raise CommandError(file_trouble(error)) from None
