"""The forest plan: documents, branches and reads as token segments with parents, cut into passes. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

BRANCH_TOKENS = 16_384  # of one branch pass; a document's questions may be cut into several


@dataclass(frozen=True)
class Segment:
    """Tokens that continue their parent's path; the root's parent is -1."""

    tokens: tuple[int, ...]
    parent: int


@dataclass(frozen=True)
class Read:
    """A position whose hidden state a readout needs: the token `offset` of a segment."""

    segment: int
    offset: int


@dataclass(frozen=True)
class Tree:
    """One document: segment 0 is the shared prefix, every other segment comes after its parent."""

    segments: tuple[Segment, ...]
    reads: tuple[Read, ...]

    def __post_init__(self) -> None:
        for index, segment in enumerate(self.segments):
            if not (segment.parent < index and (segment.parent == -1) == (index == 0)):
                raise ValueError(
                    f"segment {index} has parent {segment.parent}: parents come first, and the root has -1"
                )
        if any(not self.segments[read.segment].tokens[read.offset :] for read in self.reads):
            raise ValueError("a read lies past its segment")

    @cached_property
    def starts(self) -> list[int]:
        """The true position of each segment's first token."""
        starts: list[int] = []
        for segment in self.segments:
            parent = segment.parent
            starts.append(0 if parent < 0 else starts[parent] + len(self.segments[parent].tokens))
        return starts

    @cached_property
    def path_lengths(self) -> list[int]:
        """Tokens from the root to the end of each segment."""
        return [start + len(segment.tokens) for start, segment in zip(self.starts, self.segments, strict=True)]

    @property
    def logical_tokens(self) -> int:
        """Tokens when every leaf is its own full sequence, as without sharing."""
        parents = {segment.parent for segment in self.segments}
        return sum(length for index, length in enumerate(self.path_lengths) if index not in parents)

    @property
    def computed_tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)

    def branches(self) -> list[list[int]]:
        """The root's subtrees, each as its segments' indices: what may be put into different passes."""
        top = list(range(len(self.segments)))
        for index, segment in enumerate(self.segments):
            if segment.parent > 0:
                top[index] = top[segment.parent]
        grouped: dict[int, list[int]] = {}
        for index in range(1, len(self.segments)):
            grouped.setdefault(top[index], []).append(index)
        return list(grouped.values())

    def path(self, segment: int) -> list[int]:
        """A segment and its ancestors, the root last."""
        path = []
        while segment >= 0:
            path.append(segment)
            segment = self.segments[segment].parent
        return path


@dataclass
class Pass:
    """Tokens computed together, packed in one sequence dimension; each tree's tokens lie side by side."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)  # each token's segment within its tree
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # (tree, first row, row after the last)
    reads: list[tuple[int, int, int]] = field(default_factory=list)  # (tree, which of its reads, row)

    def add(self, tree_index: int, tree: Tree, segments: Sequence[int]) -> None:
        first = len(self.tokens)
        row_of: dict[int, int] = {}
        for index in segments:
            row_of[index] = len(self.tokens)
            tokens = tree.segments[index].tokens
            self.tokens += tokens
            self.positions += range(tree.starts[index], tree.starts[index] + len(tokens))
            self.segments += [index] * len(tokens)
        if self.spans and self.spans[-1][0] == tree_index:
            first = self.spans.pop()[1]
        self.spans.append((tree_index, first, len(self.tokens)))
        self.reads += [
            (tree_index, which, row_of[read.segment] + read.offset)
            for which, read in enumerate(tree.reads)
            if read.segment in row_of
        ]


@dataclass(frozen=True)
class Forest:
    """Several documents in the same passes: one prefix pass, and as many branch passes as the budget asks for."""

    trees: tuple[Tree, ...]
    branch_tokens: int = BRANCH_TOKENS

    def prefix_pass(self) -> Pass:
        prefixes = Pass()
        for index, tree in enumerate(self.trees):
            prefixes.add(index, tree, [0])
        return prefixes

    def branch_passes(self) -> list[Pass]:
        """Cut between questions only; a question larger than the budget has a pass of its own."""
        passes: list[Pass] = []
        for index, tree in enumerate(self.trees):
            for branch in tree.branches():
                size = sum(len(tree.segments[segment].tokens) for segment in branch)
                if not passes or len(passes[-1].tokens) + size > self.branch_tokens:
                    passes.append(Pass())
                passes[-1].add(index, tree, branch)
        return passes
