"""Where what a sandbox is given appears in its root: links lead where they lead inside, and what an image has stays as it is."""

import os

from hekla.node.shim.sandbox import inside


def test_a_link_on_the_way_leads_to_where_it_leads_inside(tmp_path):
    (tmp_path / "out").mkdir()
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    (root / "a").symlink_to("/b")
    (root / "up").symlink_to("../../../out")
    ways = {}
    for target, found in (("/a/f", "/b/f"), ("/a/g/h", "/b/g/h"), ("/a", "/b"), ("/up/x", "/out/x"), ("/b/../c", "/c")):
        assert inside.place(str(root), target, is_directory=False, ways=ways) == f"{root}{found}"
        assert inside.place(str(root), target, is_directory=False) == f"{root}{found}"
    assert (root / "b" / "g" / "h").is_file()
    assert not list((tmp_path / "out").iterdir())


def test_what_was_looked_up_in_a_place_that_is_mounted_over_is_looked_up_again(tmp_path):
    root, ways = str(tmp_path), {}
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    (tmp_path / "x" / "link").symlink_to("/y")
    assert inside.place(root, "/x/link/f", is_directory=False, ways=ways) == f"{root}/y/f"
    assert inside.place(root, "/x", is_directory=True, ways=ways) == f"{root}/x"
    os.rename(tmp_path / "x", tmp_path / "hidden")  # as a mount does
    (tmp_path / "x" / "link").mkdir(parents=True)
    assert inside.place(root, "/x/link/g", is_directory=True, ways=ways) == f"{root}/x/link/g"


def test_an_image_keeps_its_own_files_and_modes_and_nothing_is_written_through_its_links(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "etc").mkdir(parents=True)
    (root / "etc").chmod(0o700)
    (root / "etc" / "group").write_text("its own")
    outside.write_text("not the sandbox's")
    (root / "etc" / "hosts").symlink_to(outside)
    (root / "bin").symlink_to("usr/bin")
    before = os.umask(0o077)
    try:
        spec = {
            "links": [["bin", "elsewhere"]], "files": {"etc/hosts": "ours", "etc/group": "ours", "etc/passwd": "ours"},
            "homes": [["/home/user", 1000]], "uid_base": 0,
        }  # fmt: skip
        inside.make_places(str(root), spec)
    finally:
        os.umask(before)
    assert outside.read_text() == "not the sandbox's"
    assert (root / "etc" / "group").read_text() == "its own"
    assert (root / "etc" / "passwd").read_text() == "ours"
    assert os.readlink(root / "bin") == "usr/bin"
    modes = {name: oct((root / name).stat().st_mode & 0o7777) for name in ("etc", "etc/passwd", "tmp", "root", "usr")}
    assert modes == {"etc": "0o700", "etc/passwd": "0o644", "tmp": "0o1777", "root": "0o711", "usr": "0o755"}
