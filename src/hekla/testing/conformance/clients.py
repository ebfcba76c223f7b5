"""What the client promises, whatever carries its requests. A transport's test class inherits `ClientContract`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar, cast

from hekla.api.core import ConfigMap, Namespace
from hekla.api.pods import Pod
from hekla.kube.api_client import ApiClient
from hekla.kube.client import EventType, PatchType, WatchEvent
from hekla.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
)

T = TypeVar("T")


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap in `default`."""
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def raised(awaitable: Awaitable[object]) -> ApiError:
    """The refusal that awaiting raises."""
    try:
        await awaitable
    except ApiError as error:
        return error
    raise AssertionError("nothing was refused")


class ClientContract:
    """The promises."""

    def client(self) -> AbstractAsyncContextManager[ApiClient]:
        """A client of a new server."""
        raise NotImplementedError

    def run(self, scenario: Callable[[ApiClient], Awaitable[T]]) -> T:
        """Run a scenario with a client."""

        async def main() -> T:
            async with self.client() as client:
                return await scenario(client)

        return asyncio.run(main())

    def test_what_is_created_can_be_read_typed_and_raw(self) -> None:
        async def scenario(client: ApiClient) -> None:
            made = await client.create(ConfigMap, config_map("one", key="value"))
            assert made.metadata.uid
            assert (await client.get(ConfigMap, "one", "default")).data == {"key": "value"}
            document = await client.get_document(ConfigMap.kind_info, "one", "default")
            assert document["kind"] == "ConfigMap"
            assert document["data"] == {"key": "value"}

        self.run(scenario)

    def test_refusals_are_told_apart(self) -> None:
        async def scenario(client: ApiClient) -> None:
            assert isinstance(await raised(client.get(ConfigMap, "none", "default")), NotFoundError)
            await client.create(ConfigMap, config_map("one"))
            assert isinstance(await raised(client.create(ConfigMap, config_map("one"))), AlreadyExistsError)
            stale = {"metadata": {"resourceVersion": "1"}, "data": {"a": "b"}}
            assert isinstance(await raised(client.patch(ConfigMap, "one", stale, "default")), ConflictError)
            invalid = await raised(client.create(ConfigMap, config_map("Not A Name")))
            assert isinstance(invalid, InvalidError)
            assert "metadata.name" in invalid.message
            assert invalid.details["causes"]

        self.run(scenario)

    def test_a_dry_run_leaves_nothing(self) -> None:
        async def scenario(client: ApiClient) -> None:
            await client.create(ConfigMap, config_map("one"), dry_run=True)
            assert isinstance(await raised(client.get(ConfigMap, "one", "default")), NotFoundError)

        self.run(scenario)

    def test_a_list_is_whole_however_it_is_paged(self) -> None:
        async def scenario(client: ApiClient) -> None:
            client._page_limit = 7  # small pages make a small test
            for number in range(30):
                await client.create(ConfigMap, config_map(f"c{number:02d}"))
            page = await client.list(ConfigMap, "default")
            names = [item.metadata.name for item in page.items if item.metadata.name.startswith("c")]
            assert names == [f"c{number:02d}" for number in range(30)]
            assert page.resource_version
            raw = await client.list_documents(ConfigMap.kind_info, "default")
            assert len(raw.items) == len(page.items)
            assert raw.items[0]["apiVersion"] == "v1"

        self.run(scenario)

    def test_selectors_choose(self) -> None:
        async def scenario(client: ApiClient) -> None:
            for name, app in (("a", "web"), ("b", "db")):
                document = config_map(name)
                document["metadata"]["labels"] = {"app": app}
                await client.create(ConfigMap, document)
            by_label = await client.list(ConfigMap, label_selector="app in (web)")
            assert [item.metadata.name for item in by_label.items] == ["a"]
            by_field = await client.list(ConfigMap, "default", field_selector="metadata.name=b")
            assert [item.metadata.name for item in by_field.items] == ["b"]

        self.run(scenario)

    def test_every_kind_of_patch_is_understood(self) -> None:
        async def scenario(client: ApiClient) -> None:
            await client.create(ConfigMap, config_map("one", a="1", b="2"))
            merged = await client.patch(ConfigMap, "one", {"data": {"a": None, "c": "3"}}, "default")
            assert merged.data == {"b": "2", "c": "3"}
            replaced = await client.patch(
                ConfigMap, "one", [{"op": "replace", "path": "/data/b", "value": "x"}], "default",
                patch_type=PatchType.JSON,
            )  # fmt: skip
            assert replaced.data["b"] == "x"
            applied = await client.patch(
                ConfigMap, "one", {"metadata": {"name": "one"}, "data": {"mine": "1"}}, "default",
                patch_type=PatchType.APPLY, field_manager="tester", force=True,
            )  # fmt: skip
            assert applied.data["mine"] == "1"

        self.run(scenario)

    def test_a_watch_tells_every_change_after_its_revision(self) -> None:
        async def scenario(client: ApiClient) -> None:
            start = (await client.list(ConfigMap)).resource_version
            await client.create(ConfigMap, config_map("one"))
            await client.patch(ConfigMap, "one", {"data": {"a": "b"}}, "default")
            await client.delete(ConfigMap, "one", "default")
            events = await self._events(client, start, 3)
            assert [event.type for event in events] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
            assert events[1].object.data == {"a": "b"}
            revisions = [int(event.resource_version) for event in events]
            assert revisions == sorted(revisions)
            assert revisions[0] > int(start)

        self.run(scenario)

    def test_a_watch_waits_for_what_has_not_happened_yet(self) -> None:
        async def scenario(client: ApiClient) -> None:
            start = (await client.list(ConfigMap)).resource_version
            watching = asyncio.create_task(self._events(client, start, 1))
            await asyncio.sleep(0)
            await client.create(ConfigMap, config_map("one"))
            assert (await watching)[0].object.metadata.name == "one"

        self.run(scenario)

    def test_a_watch_can_begin_with_what_is_there(self) -> None:
        async def scenario(client: ApiClient) -> None:
            await client.create(ConfigMap, config_map("one"))
            names, ends = [], False
            watch = client.watch(ConfigMap, "default", resource_version="", send_initial_events=True)
            async with aclosing(cast(Any, watch)) as events:
                async for event in events:
                    if event.type is EventType.BOOKMARK:
                        ends = event.object.metadata.annotations.get("k8s.io/initial-events-end") == "true"
                        break
                    names.append(event.object.metadata.name)
            assert "one" in names
            assert ends

        self.run(scenario)

    def test_a_watch_from_a_future_or_forgotten_revision_is_refused(self) -> None:
        async def scenario(client: ApiClient) -> None:
            error = await raised(self._events(client, "999999999", 1))
            assert isinstance(error, GoneError) or error.code == 504

        self.run(scenario)

    def test_deletion_has_preconditions(self) -> None:
        async def scenario(client: ApiClient) -> None:
            made = await client.create(ConfigMap, config_map("one"))
            wrong = client.delete(ConfigMap, "one", "default", uid="00000000-0000-0000-0000-000000000000")
            assert isinstance(await raised(wrong), ConflictError)
            await client.delete(ConfigMap, "one", "default", uid=made.metadata.uid, propagation="Background")
            assert isinstance(await raised(client.get(ConfigMap, "one", "default")), NotFoundError)

        self.run(scenario)

    def test_a_pod_is_bound_once(self) -> None:
        async def scenario(client: ApiClient) -> None:
            pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
            made = await client.create(Pod, pod, "default")
            await client.bind("default", "p", "node-1", uid=made.metadata.uid, annotations={"slot": "3"})
            bound = await client.get(Pod, "p", "default")
            assert bound.spec.node_name == "node-1"
            assert bound.metadata.annotations["slot"] == "3"
            assert isinstance(await raised(client.bind("default", "p", "node-2")), ConflictError)

        self.run(scenario)

    def test_a_status_is_written_apart(self) -> None:
        async def scenario(client: ApiClient) -> None:
            pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
            await client.create(Pod, pod, "default")
            changed = await client.patch(Pod, "p", {"status": {"phase": "Running"}}, "default", subresource="status")
            assert changed.status.phase == "Running"

        self.run(scenario)

    def test_any_path_can_be_asked(self) -> None:
        async def scenario(client: ApiClient) -> None:
            version = await client.request("GET", "/version")
            assert version["major"]
            assert await client.text("/healthz") == "ok"
            missing = await raised(client.request("GET", "/apis/none.example/v1/things"))
            assert missing.code == 404

        self.run(scenario)

    def test_names_are_quoted(self) -> None:
        async def scenario(client: ApiClient) -> None:
            error = await raised(client.get(Namespace, "a/b?c"))
            assert error.code in (400, 404)

        self.run(scenario)

    async def _events(self, client: ApiClient, start: str, count: int) -> list[WatchEvent[ConfigMap]]:
        found: list[WatchEvent[ConfigMap]] = []
        watch = client.watch(ConfigMap, "default", resource_version=start)
        async with aclosing(cast(Any, watch)) as events:
            async for event in events:
                if event.type is not EventType.BOOKMARK:
                    found.append(event)
                if len(found) == count:
                    break
        return found
