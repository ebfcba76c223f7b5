"""The definitions of our kinds, as a server that has checked and established them leaves them in its store.

Checking one of ours takes 25 ms of processor time, and many worlds of tests have two dozen: once a process is enough.
"""

import asyncio
from collections.abc import Iterable

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.crd import crd_document
from hekla.api.meta import Resource
from hekla.apiserver.bodies import decode_document, head_of, render_of, tail_of
from hekla.apiserver.crds import DEFINITIONS
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.server import ApiServer
from hekla.apiserver.store import Key, Render, Store, Stored
from hekla.apiserver.strategies import builtin_strategies
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport

_established: dict[type[Resource], tuple[Stored, Render]] = {}


async def define(store: Store, kinds: Iterable[type[Resource]]) -> None:
    """Write the definitions of kinds into a store, for a server that starts on it."""
    for kind in kinds:
        if kind not in _established:
            made = await _definition(kind)
            head, tail = head_of(CustomResourceDefinition.kind_info), tail_of(decode_document(made.body))
            _established[kind] = made, render_of(head, tail, made.managed_fields)
        made, render = _established[kind]
        await store.put(made.key, render, expected=0, labels=made.labels, fields=made.fields)


async def _definition(kind: type[Resource]) -> Stored:
    store = MemoryStore()
    server = ApiServer(store, strategies=list(builtin_strategies().values()), rules=())
    await server.start()
    try:
        client = ApiClient(InProcessTransport(server.handle))
        document = crd_document(kind)
        await client.create(CustomResourceDefinition, document)
        key = Key(DEFINITIONS, "", document["metadata"]["name"])
        while (made := store.get_durable(key)) is None or b'"Established"' not in made.body:
            await asyncio.sleep(0)
        return made
    finally:
        await server.stop()
        await store.close()
