"""The forest plan: positions, counts and cuts, without a model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.forest import Forest, Read, Segment, Tree

#       document 0 1 2 ── question 3 4 ── option 5
#                      │               └─ option 5 6
#                      └─ question 3
TREE = Tree(
    (Segment((10, 11, 12), -1), Segment((20, 21), 0), Segment((30,), 1), Segment((31, 32), 1), Segment((22,), 0)),
    (Read(1, 1), Read(2, 0), Read(3, 1), Read(4, 0)),
)


def test_a_segment_begins_where_its_parent_ends():
    assert TREE.starts == [0, 3, 5, 5, 3]
    assert TREE.path_lengths == [3, 5, 6, 7, 4]
    assert TREE.path(3) == [3, 1, 0]


def test_tokens_are_counted_with_and_without_sharing():
    assert TREE.computed_tokens == 9
    assert TREE.logical_tokens == 6 + 7 + 4


def test_a_pass_packs_trees_side_by_side_at_true_positions():
    [branches] = Forest((TREE, TREE)).branch_passes()
    assert branches.tokens == [20, 21, 30, 31, 32, 22] * 2
    assert branches.positions == [3, 4, 5, 5, 6, 3] * 2
    assert branches.segments == [1, 1, 2, 3, 3, 4] * 2
    assert branches.spans == [(0, 0, 6), (1, 6, 12)]
    assert branches.reads[:4] == [(0, 0, 1), (0, 1, 2), (0, 2, 4), (0, 3, 5)]


def test_a_cut_falls_between_questions_and_loses_none():
    first, second = Forest((TREE,), branch_tokens=5).branch_passes()
    assert first.tokens == [20, 21, 30, 31, 32]
    assert second.tokens == [22]
    assert [read[1] for read in first.reads + second.reads] == [0, 1, 2, 3]


def test_a_question_larger_than_the_budget_has_a_pass_of_its_own():
    assert [len(packed.tokens) for packed in Forest((TREE,), branch_tokens=1).branch_passes()] == [5, 1]


def test_a_document_without_questions_has_no_branch_pass():
    forest = Forest((Tree((Segment((1, 2), -1),), (Read(0, 1),)),))
    assert forest.branch_passes() == []
    assert forest.prefix_pass().reads == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("segments", "reads"),
    [
        ((Segment((1,), 0),), ()),
        ((Segment((1,), -1), Segment((1,), 1)), ()),
        ((Segment((1,), -1), Segment((1,), -1)), ()),
        ((Segment((1,), -1),), (Read(0, 1),)),
    ],
)
def test_a_plan_that_is_no_tree_is_refused(segments, reads):
    with pytest.raises(ValueError, match=r"parent|read"):
        Tree(segments, reads)


@st.composite
def trees(draw):
    parents = [-1, *(draw(st.integers(0, index)) for index in range(draw(st.integers(0, 8))))]
    segments = [Segment(tuple(range(draw(st.integers(1, 4)))), parent) for parent in parents]
    reads = tuple(Read(index, len(segment.tokens) - 1) for index, segment in enumerate(segments))
    return Tree(tuple(segments), reads)


@settings(deadline=None)
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 30))
def test_every_token_and_every_read_is_in_exactly_one_pass(planned, budget):
    forest = Forest(tuple(planned), branch_tokens=budget)
    passes = [forest.prefix_pass(), *forest.branch_passes()]
    assert sum(len(packed.tokens) for packed in passes) == sum(tree.computed_tokens for tree in planned)
    found = sorted((tree, which) for packed in passes for tree, which, _ in packed.reads)
    assert found == [(tree, which) for tree, plan in enumerate(planned) for which in range(len(plan.reads))]
    for packed in passes:
        for tree, first, last in packed.spans:
            assert first < last
            places = zip(packed.segments[first:last], packed.positions[first:last], strict=True)
            assert all(planned[tree].starts[segment] <= position for segment, position in places)
