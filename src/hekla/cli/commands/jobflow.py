"""Create, see and delete JobFlows: jobs that wait for one another.

Examples:

  hekla jobflow create -f flow.yaml

  hekla jobflow list -A -w

  hekla jobflow describe nightly
"""

from hekla.cli.flow_commands import FLOW, own_commands

COMMANDS = own_commands(FLOW)
