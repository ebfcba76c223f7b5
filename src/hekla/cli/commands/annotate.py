"""Set or remove annotations: KEY=VALUE sets one, KEY- removes it.

Examples:

  hekla annotate vcjob/train owner=ann

  hekla annotate pods --all note-
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
    """Set or remove annotations."""
    from hekla.cli.connection import run_connected
    from hekla.cli.metadata_edits import MetadataEdit, split_words

    named, changes = split_words(words, "hekla annotate vcjob/train owner=ann")
    edit = MetadataEdit("annotations", "annotated", changes, overwrite)
    run_connected(kubeconfig, lambda link: edit.all(link, named, namespace, selector=selector, every=every))
