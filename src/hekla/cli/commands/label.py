"""Set or remove labels: KEY=VALUE sets one, KEY- removes it.

Examples:

  hekla label pod train-worker-0 tier=gold

  hekla label node/node-1 zone=a --overwrite

  hekla label pods -l app=web tier-
"""

from hekla.cli.options import AllObjects, Kubeconfig, MetadataWords, Namespace, Overwrite, Selector


def run(
    words: MetadataWords,
    namespace: Namespace = "",
    selector: Selector = "",
    every: AllObjects = False,
    overwrite: Overwrite = False,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Set or remove labels."""
    from hekla.cli.connection import run_connected
    from hekla.cli.metadata_edits import MetadataEdit, split_words

    named, changes = split_words(words, "hekla label pod web tier=gold")
    edit = MetadataEdit("labels", "labeled", changes, overwrite)
    run_connected(kubeconfig, lambda link: edit.all(link, named, namespace, selector=selector, every=every))
