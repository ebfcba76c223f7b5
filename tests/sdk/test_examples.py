"""The LangChain tool and the Dify plug-in of examples/agents, as far as they go without either."""

import ast
import importlib.util
from pathlib import Path

import pytest
import yaml

import hekla_sdk

AGENTS = Path(__file__).resolve().parents[2] / "examples" / "agents"
DIFY = AGENTS / "dify"


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_is_told_output_value_and_error_and_the_variables_stay(environment):
    example = loaded(AGENTS / "langchain_tool.py")
    with hekla_sdk.Session.create(timeout=120) as session:
        assert example.run_python(session, "x = 41\nprint('said')\nx + 1") == "said\n42"
        assert example.run_python(session, "y").endswith("NameError: name 'y' is not defined")
        assert example.run_python(session, "pass") == "[no output]"
        assert example.run_python(session, "print('x' * 50_000)").endswith("[cut]")
    assert example.run_python(session, "x").startswith("the sandbox refused: ")


def test_langchain_calls_the_tool(environment):
    pytest.importorskip("langchain_core")
    example = loaded(AGENTS / "langchain_tool.py")
    with hekla_sdk.Session.create(timeout=120) as session:
        assert example.python_tool(session).invoke({"code": "6 * 7"}) == "42"


def test_the_dify_plug_in_names_files_that_are_there():
    manifest = yaml.safe_load((DIFY / "manifest.yaml").read_text())
    assert (DIFY / "_assets" / manifest["icon"]).exists()
    assert (DIFY / f"{manifest['meta']['runner']['entrypoint']}.py").exists()
    [provider] = [yaml.safe_load((DIFY / name).read_text()) for name in manifest["plugins"]["tools"]]
    tools = [yaml.safe_load((DIFY / name).read_text()) for name in provider["tools"]]
    for told in (provider, *tools):
        tree = ast.parse((DIFY / told["extra"]["python"]["source"]).read_text())
        assert len([one for one in tree.body if isinstance(one, ast.ClassDef)]) == 1


def test_dify_reads_the_plug_in(monkeypatch):
    entities = pytest.importorskip("dify_plugin.entities.tool")
    setup = pytest.importorskip("dify_plugin.core.entities.plugin.setup")
    monkeypatch.chdir(DIFY)  # paths are those of the plug-in
    setup.PluginConfiguration(**yaml.safe_load(Path("manifest.yaml").read_text()))
    provider = entities.ToolProviderConfiguration(**yaml.safe_load(Path("provider/hekla.yaml").read_text()))
    assert [one.identity.name for one in provider.tools] == ["run_code"]
