"""The nouns of agents: AgentCube's runtimes, agent-sandbox's Sandboxes, and what a node promises to do with them.

One module per family; `names.py` spells labels and annotations, `node_contract.py` is what `hekla.node` serves and
`hekla.sandbox` calls.
"""

from hekla.api.agents.agentcube import AgentRuntime, CodeInterpreter
from hekla.api.agents.extensions import SandboxClaim, SandboxTemplate, SandboxWarmPool
from hekla.api.agents.sandbox import Sandbox

__all__ = ["AgentRuntime", "CodeInterpreter", "Sandbox", "SandboxClaim", "SandboxTemplate", "SandboxWarmPool"]

AGENT_KINDS = (AgentRuntime, CodeInterpreter, Sandbox, SandboxTemplate, SandboxWarmPool, SandboxClaim)
"""Every kind of this package, in the order of `make gen`."""
