"""The list of commands that `--help` prints."""

from collections import Counter

import pytest

from hekla.cli import front_page, main


@pytest.fixture
def shown(capsys, monkeypatch):
    """What `hekla ... --help` prints in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def ask(*words):
        assert main.main([*words, "--help"]) == 0
        return capsys.readouterr().out

    return ask


def test_every_command_is_in_one_section():
    listed = Counter(name for names in front_page.SECTIONS.values() for name in names)
    assert listed == Counter(main.command_names())


def test_the_sections_come_in_the_order_in_which_they_are_needed(shown):
    lines = shown().splitlines()
    titles = [f"{title}:" for title in front_page.SECTIONS]
    assert [line for line in lines if line in titles] == titles
    assert lines.index("  up             Start the embedded platform: an API server, a scheduler, the") < lines.index(
        "Objects:"
    )


@pytest.mark.parametrize("words", [(), ("agent",), ("vcctl", "job")])
def test_no_sentence_is_cut(shown, words):
    assert "..." not in shown(*words).partition("Options:")[2]


def test_commands_below_a_word_are_one_list_in_their_own_order(shown):
    listed = shown("agent").partition("\nCommands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed if line[2:3].strip()][:3] == ["create", "list", "exec"]


@pytest.mark.parametrize("word", ["queue", "vcctl"])
def test_a_group_whose_names_are_also_commands_of_hekla_is_one_list(shown, word):
    assert "\nCommands:\n" in shown(word)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Print it. Then rest.\n\nMore.", "Print it."),
        ("Print it\nwhole.", "Print it whole."),
        ("Print it: " + "all of it, " * 20, "Print it."),
    ],
)
def test_a_summary_is_the_first_sentence(text, line):
    assert front_page.summary(text) == line
