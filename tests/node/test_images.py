"""What an image's name means where nothing is pulled: one that no registry could have is told, as a kubelet tells it."""

import pytest

from hekla.node.images import ImageRegistry, malformed

GOOD = [
    "busybox", "python:3.12", "foo/bar:1", "localhost:5000/a/b", "[::1]:5000/x", "nvcr.io/nvidia/pytorch:24.01-py3",
    "a" * 247, "reg.io/" + "a" * 255 + ":v1", "a" * 63, "A.io/" + "0" * 64,
    "ghcr.io/a_b/c__d/e-f.g:v1", "a/b@sha256:" + "0" * 64, "Reg.io/a/b:v1@sha256:" + "0" * 64,
]  # fmt: skip


@pytest.mark.parametrize("image", GOOD)
def test_names_that_a_registry_could_have(image):
    assert malformed(image) == ""


@pytest.mark.parametrize("image", ["a b", "foo//bar", "busybox:", "-x", ":x", "a:b:c", "x@sha256:12", "https://a/b"])
def test_names_that_none_could_have(image):
    assert malformed(image) == "invalid reference format"


@pytest.mark.parametrize("image", ["a" * 248, "docker.io/" + "a" * 248, "reg.io/" + "a" * 256, "a/" * 127 + "aa:v1"])
def test_a_repositorys_name_has_an_end(image):
    assert malformed(image) == "repository name must not be more than 255 characters"


def test_a_number_is_no_name():
    number = "0a" * 32
    why = f"invalid repository name ({number}), cannot specify 64-byte hexadecimal strings"
    assert malformed(number) == why
    assert malformed(f"{number}:v1") == malformed(f"a/{number}") == ""


def test_a_tall_letter_is_named(tmp_path):
    said = ImageRegistry().refusal_of("foo/Bar:1")
    assert said.startswith('Failed to apply default image tag "foo/Bar:1": couldn\'t parse image name "foo/Bar:1": ')
    assert said.endswith(": invalid reference format: repository name (foo/Bar) must be lowercase")
    assert "repository name (Bar)" in ImageRegistry().refusal_of("Foo/Bar:1")
    assert ImageRegistry({"foo/Bar:1": tmp_path}).refusal_of("foo/Bar:1") == ""


def waiting(pod):
    statuses = pod.status.container_statuses
    return statuses[0].state.waiting if statuses else None


def test_a_container_of_such_an_image_waits_and_says_why(live):
    async def story(cluster):
        await cluster.apply("p", {"containers": [{"name": "main", "image": "Foo/Bar", "command": ["true"]}]})
        pod = await cluster.until("p", lambda pod: waiting(pod) and waiting(pod).message)
        assert (waiting(pod).reason, pod.status.phase) == ("InvalidImageName", "Pending")
        assert "repository name (Bar) must be lowercase" in waiting(pod).message

    live(story)
