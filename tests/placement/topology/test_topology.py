from hekla.placement.constraint import Operator, Requirement
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.tree import ROOT_NAME
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import World


def rack(name: str, *nodes: str, tier: int = 1) -> DomainSpec:
    return DomainSpec(name=name, tier=tier, members=tuple(Members(name=node) for node in nodes))


def row(name: str, *racks: str, tier: int = 2) -> DomainSpec:
    return DomainSpec(name=name, tier=tier, members=tuple(Members(name=one, are_domains=True) for one in racks))


def world(*specs: DomainSpec, nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4")) -> World:
    made = World()
    for name in nodes:
        made.node(name, cpu=4, memory=8)
    for spec in specs:
        made.cluster.put_domain(spec)
    return made


def held(made: World, domain: str) -> set[str]:
    tree = made.cluster.topology.tree()
    return {made.cluster.nodes.name(at) for at in tree.rows(tree.names.index(domain)).tolist()}


def test_the_virtual_root_is_one_tier_above_all_others_and_of_tier_1_when_alone() -> None:
    assert world().cluster.topology.tree().tiers == (1,)
    tree = world(rack("a", "n1"), row("r", "a", tier=5)).cluster.topology.tree()
    assert (tree.names[tree.root], tree.tiers[tree.root]) == (ROOT_NAME, 6)


def test_a_domain_holds_what_its_members_hold() -> None:
    made = world(rack("a", "n1", "n2"), rack("b", "n3"), row("r", "a", "b"))
    assert held(made, "a") == {"n1", "n2"}
    assert held(made, "r") == {"n1", "n2", "n3"}
    assert held(made, ROOT_NAME) == {"n1", "n2", "n3", "n4"}


def test_siblings_meet_in_their_row_and_strangers_in_the_root() -> None:
    tree = world(rack("a", "n1"), rack("b", "n2"), rack("c", "n3"), row("r", "a", "b")).cluster.topology.tree()
    a, b, c, r = (tree.names.index(name) for name in "abcr")
    assert (tree.common(a, b), tree.common(a, r), tree.common(a, c)) == (r, r, tree.root)


def test_labels_on_domains_select_them_as_members() -> None:
    labelled = DomainSpec(name="a", tier=1, labels={"row": "one"}, members=(Members(name="n1"),))
    by_label = Members(labels=(Requirement("row", Operator.IN, ("one",)),), are_domains=True)
    made = world(labelled, rack("b", "n2"), DomainSpec(name="r", tier=2, members=(by_label,)))
    assert held(made, "r") == {"n1"}


def test_a_node_that_is_relabelled_moves() -> None:
    by_label = DomainSpec(name="a", tier=1, members=(Members(labels=(Requirement("rack", Operator.IN, ("a",)),)),))
    made = world(by_label)
    assert held(made, "a") == set()
    made.node("n2", cpu=4, memory=8, labels={"rack": "a"})
    assert held(made, "a") == {"n2"}
    made.node("n2", cpu=4, memory=8)
    assert held(made, "a") == set()


def test_a_row_of_columns_that_another_node_takes_over_is_matched_anew() -> None:
    made = world(rack("a", "n1"))
    assert held(made, "a") == {"n1"}
    made.cluster.remove_node("n1")
    made.node("n9", cpu=4, memory=8)
    assert held(made, "a") == set()


def test_a_member_that_is_not_below_is_told_and_left_out() -> None:
    made = world(rack("a", "n1"), row("x", "y", tier=3), row("y", "x", "a", tier=3))
    assert held(made, "y") == {"n1"}
    (first, second) = made.cluster.topology.faults
    assert 'hypernode "x" of tier 3 has the member "y" of tier 3, which is not below it' in first
    assert 'hypernode "y" of tier 3 has the member "x" of tier 3, which is not below it' in second


def test_a_ring_that_is_mended_is_told_no_more() -> None:
    made = world(row("x", "y"), row("y", "x"))
    made.cluster.topology.tree()
    assert made.cluster.topology.faults
    made.cluster.put_domain(rack("y", "n1"))
    assert held(made, "x") == {"n1"}
    assert made.cluster.topology.faults == ()


def test_a_node_of_two_racks_counts_for_the_first_by_name() -> None:
    made = world(rack("b", "n1", "n2"), rack("a", "n1"))
    assert (held(made, "a"), held(made, "b")) == ({"n1"}, {"n2"})
    assert made.cluster.topology.faults == (
        'node "n1" is a member of hypernode "a" and of "b", which is not around it; it counts for "a" alone',
    )


def test_a_node_that_is_named_by_its_rack_and_its_row_is_no_fault() -> None:
    both = DomainSpec(name="r", tier=2, members=(Members(name="a", are_domains=True), Members(name="n1")))
    made = world(rack("a", "n1"), both)
    assert held(made, "r") == {"n1"}
    assert made.cluster.topology.faults == ()


def test_a_rack_of_two_rows_counts_for_the_first_by_name() -> None:
    made = world(rack("a", "n1"), row("r2", "a"), row("r1", "a"))
    assert (held(made, "r1"), held(made, "r2")) == ({"n1"}, set())
    assert 'hypernode "a" is a member of hypernode "r1" and of "r2"' in made.cluster.topology.faults[0]


def test_a_pattern_that_does_not_compile_matches_nothing_and_is_told() -> None:
    made = world(DomainSpec(name="a", tier=1, members=(Members(pattern="("),)))
    assert held(made, "a") == set()
    assert "which does not compile" in made.cluster.topology.faults[0]


def test_what_changes_nothing_grows_no_tree() -> None:
    made = world(rack("a", "n1"))
    tree = made.cluster.topology.tree()
    made.node("n1", cpu=4, memory=8)
    made.cluster.put_domain(rack("a", "n1"))
    assert made.cluster.topology.tree() is tree


def test_gangs_wait_until_all_hypernodes_are_known() -> None:
    made = world(rack("a", "n1"))
    made.cluster.topology.is_known = False
    made.job("close", tasks=1, more={"closeness": Closeness(highest_tier=1)}, cpu=1)
    made.job("any", tasks=1, cpu=1)
    assert list(made.schedule()) == ["any-0"]
    assert "hypernodes are not known yet" in made.why("close")
    made.cluster.topology.is_known = True
    made.cluster.gains += 1
    assert made.schedule() == {"close-0": "n1"}


def test_pods_that_run_too_far_apart_are_told() -> None:
    made = world(rack("a", "n1"), rack("b", "n2"), row("r", "a", "b"))
    job = made.job("g", tasks=3, min_available=2, more={"closeness": Closeness(highest_tier=2)}, cpu=3)
    made.schedule()
    made.cluster.remove_domain("r")
    made.cluster.put_domain(row("r", "a", tier=2))
    made.node("n5", cpu=4, memory=8)
    assert made.schedule() == {}
    assert made.why(job.uid) == (
        "2 placed pods share no hypernode up to tier 2, only <cluster-top-hypernode> (tier 3); the others wait until"
        " those have ended"
    )
