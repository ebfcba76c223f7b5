"""The packages `e2b` and `e2b-code-interpreter` as they come from PyPI, with nothing but their environment variables."""

import pytest

e2b = pytest.importorskip("e2b")
interpreter = pytest.importorskip("e2b_code_interpreter")


@pytest.fixture
def sandbox(e2b_environment):
    made = e2b.Sandbox.create(timeout=120, metadata={"who": "test"})
    yield made
    made.kill()


def test_commands_run_and_say_what_they_said(sandbox):
    said = []
    result = sandbox.commands.run("echo out; echo err >&2", on_stdout=said.append)
    assert (result.stdout, result.stderr, result.exit_code, said) == ("out\n", "err\n", 0, ["out\n"])
    with pytest.raises(e2b.CommandExitException) as failure:
        sandbox.commands.run("exit 3")
    assert failure.value.exit_code == 3


def test_a_command_takes_input_in_the_background_and_is_killed(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    for stdout, _, _ in handle:
        if stdout:
            assert stdout == "hello\n"
            break
    assert [one.pid for one in sandbox.commands.list()] == [handle.pid]
    assert handle.kill()


def test_files_are_written_read_listed_and_gone(sandbox):
    root = sandbox.commands.run("mktemp -d").stdout.strip()
    sandbox.files.write(f"{root}/a.txt", "x" * 100_000)
    assert sandbox.files.read(f"{root}/a.txt") == "x" * 100_000
    assert [one.name for one in sandbox.files.list(root)] == ["a.txt"]
    sandbox.files.remove(f"{root}/a.txt")
    assert not sandbox.files.exists(f"{root}/a.txt")


def test_a_sandbox_is_listed_paused_woken_and_killed(e2b_environment):
    sandbox = e2b.Sandbox.create(timeout=120, metadata={"who": "lifecycle"})
    query = e2b.SandboxQuery(metadata={"who": "lifecycle"})
    assert [one.sandbox_id for one in e2b.Sandbox.list(query=query).next_items()] == [sandbox.sandbox_id]
    assert sandbox.is_running()
    sandbox.pause()
    assert not sandbox.is_running()
    again = e2b.Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running()
    assert again.commands.run("echo awake").stdout == "awake\n"
    sandbox.set_timeout(300)
    assert sandbox.get_info().end_at > sandbox.get_info().started_at
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()


def test_signed_urls_open_their_file_and_no_other(sandbox):
    import urllib.error
    import urllib.request

    root = sandbox.commands.run("mktemp -d").stdout.strip()
    sandbox.files.write(f"{root}/a.txt", "signed")
    url = sandbox.download_url(f"{root}/a.txt", user="")
    assert urllib.request.urlopen(url).read() == b"signed"
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(url.replace("a.txt", "b.txt"))
    assert refusal.value.code == 401


def test_a_wrong_key_is_refused(e2b_environment):
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(api_key="e2b_" + "0" * 40)


def test_a_template_that_is_not_there_is_named(e2b_environment):
    with pytest.raises(e2b.SandboxException, match='template "nothing" not found'):
        e2b.Sandbox.create("nothing")


def test_code_keeps_its_variables_from_cell_to_cell(e2b_environment):
    sandbox = interpreter.Sandbox.create(timeout=120)
    try:
        sandbox.run_code("x = 6 * 7")
        assert sandbox.run_code("x").text == "42"
        failed = sandbox.run_code("1 / 0")
        assert failed.error.name == "ZeroDivisionError"
        assert "".join(sandbox.run_code("print('said')").logs.stdout) == "said\n"
    finally:
        sandbox.kill()


def test_contexts_are_made_listed_restarted_and_removed(e2b_environment):
    sandbox = interpreter.Sandbox.create(timeout=120)
    try:
        context = sandbox.create_code_context(cwd="/tmp", language="python")
        assert sandbox.run_code("import os; x = 1; os.getcwd()", context=context).text == "'/tmp'"
        assert context.id in [one.id for one in sandbox.list_code_contexts()]
        sandbox.restart_code_context(context)
        assert sandbox.run_code("x", context=context).error.name == "NameError"
        sandbox.remove_code_context(context)
        assert context.id not in [one.id for one in sandbox.list_code_contexts()]
    finally:
        sandbox.kill()
