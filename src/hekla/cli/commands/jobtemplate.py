"""Create, see and delete JobTemplates, from which JobFlows make their jobs.

Examples:

  hekla jobtemplate create -f templates.yaml

  hekla jobtemplate list -o wide

  hekla jobtemplate delete preprocess
"""

from hekla.cli.flow_commands import TEMPLATE, own_commands

COMMANDS = own_commands(TEMPLATE)
