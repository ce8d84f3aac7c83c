"""A radix tree over block-aligned runs of tokens. Owns its shape; not what its block ids mean, nor their life."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.cache.prefix_types import TOKEN_BYTES, Digest, PrefixDomain, Snapshot, blake2b_128


class PrefixNode:
    """An edge of the tree with the node at its end: absolute blocks `[start, stop)` after those of its ancestors.

    `tokens` has `stop - start` blocks of encoded ids; `blocks[group]` as many block ids, None where none is held, all
    None before `first_held[group]`. `snapshots` are by the absolute block they end at. `queued` has a bit per queue.
    `num_cuts` counts the blocks taken off the end, after which other ones may have been put there.
    """

    __slots__ = (
        "alive",
        "blocks",
        "children",
        "first_held",
        "key",
        "last_use",
        "num_cuts",
        "parent",
        "queued",
        "root_key",
        "snapshots",
        "start",
        "tokens",
    )

    def __init__(
        self,
        parent: PrefixNode | None,
        root_key: bytes,
        start: int,
        tokens: bytes | bytearray,
        blocks: list[list[int | None]],
    ) -> None:
        self.parent = parent
        self.root_key = root_key
        self.start = start
        self.tokens = bytearray(tokens)
        self.blocks = blocks
        self.first_held = [0] * len(blocks)
        self.children: dict[bytes, list[PrefixNode]] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.last_use = 0
        self.queued = 0
        self.num_cuts = 0
        self.alive = True
        self.key = b""  # under which its parent has it

    @property
    def is_root(self) -> bool:
        return self.parent is None


class PrefixTree:
    """Edges by a digest of (domain, position, first block), in buckets; the tokens of an edge are always compared.

    So a digest that collides costs time and never mixes tokens or domains.
    """

    def __init__(self, block_size: int, num_groups: int, digest: Digest = blake2b_128) -> None:
        self.stride = block_size * TOKEN_BYTES
        self._num_groups = num_groups
        self._digest = digest
        self._roots: dict[bytes, list[tuple[PrefixDomain, PrefixNode]]] = {}

    def root(self, domain: PrefixDomain) -> PrefixNode | None:
        for known, root in self._roots.get(self._digest(domain.encoded()), ()):
            if known == domain:
                return root
        return None

    def make_root(self, domain: PrefixDomain) -> PrefixNode:
        root = self.root(domain)
        if root is None:
            key = self._digest(domain.encoded())
            root = PrefixNode(None, key, 0, b"", [[] for _ in range(self._num_groups)])
            self._roots.setdefault(key, []).append((domain, root))
        return root

    def stop(self, node: PrefixNode) -> int:
        return node.start + len(node.tokens) // self.stride

    def child(self, node: PrefixNode, tokens: bytes, block: int) -> PrefixNode | None:
        """The edge from the end of `node` whose first block has the tokens of block `block` of `tokens`."""
        first = tokens[block * self.stride : (block + 1) * self.stride]
        for child in node.children.get(self._key(node, first), ()):
            if child.tokens[: self.stride] == first:
                return child
        return None

    def common(self, node: PrefixNode, at: int, tokens: bytes, block: int, limit: int) -> int:
        """How many blocks (at most `limit`) of `node`, from its block `at` on, equal those of `tokens` from `block`."""
        stride = self.stride
        mine, theirs = at * stride, block * stride

        def equal(first: int, stop: int) -> bool:
            first, stop = first * stride, stop * stride
            return node.tokens[mine + first : mine + stop] == tokens[theirs + first : theirs + stop]

        if equal(0, limit):
            return limit
        low, high = 0, limit  # blocks before `low` are equal, one before `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            if equal(low, middle):
                low = middle
            else:
                high = middle
        return low

    def walk(self, root: PrefixNode, tokens: bytes, num_blocks: int) -> list[tuple[PrefixNode, int]]:
        """The nodes that the first `num_blocks` blocks of `tokens` lead through, each with how many it shares."""
        path = []
        node, at = root, 0
        while at < num_blocks:
            child = self.child(node, tokens, at)
            if child is None:
                break
            held = self.stop(child) - child.start
            n = self.common(child, 0, tokens, at, min(held, num_blocks - at))
            path.append((child, n))
            at += n
            if n < held:
                break
            node = child
        return path

    def attach(self, parent: PrefixNode, tokens: bytes, blocks: list[list[int | None]]) -> PrefixNode:
        """A new leaf at the end of `parent`."""
        node = PrefixNode(parent, parent.root_key, self.stop(parent), tokens, blocks)
        self._link(parent, node)
        return node

    def split(self, node: PrefixNode, n: int) -> PrefixNode:
        """Cut the edge after its first `n` blocks; returns the new upper part. `node` remains as the lower one."""
        parent, cut = node.parent, n * self.stride
        assert parent is not None, "a root has no edge"
        assert 0 < cut < len(node.tokens), "an edge is split within"
        self._unlink(parent, node)
        upper = PrefixNode(parent, node.root_key, node.start, node.tokens[:cut], [ids[:n] for ids in node.blocks])
        upper.last_use = node.last_use
        upper.first_held = [min(first, n) for first in node.first_held]
        upper.snapshots = {at: snapshot for at, snapshot in node.snapshots.items() if at <= node.start + n}
        self._link(parent, upper)
        node.parent = upper
        node.start += n
        del node.tokens[:cut]
        for ids in node.blocks:
            del ids[:n]
        node.first_held = [max(0, first - n) for first in node.first_held]
        node.snapshots = {at: snapshot for at, snapshot in node.snapshots.items() if at > node.start}
        self._link(upper, node)
        return upper

    def remove(self, node: PrefixNode) -> PrefixNode:
        """Take a childless node out; returns its parent. A root without children goes too."""
        parent = node.parent
        assert parent is not None, "a root has no edge"
        assert not node.children, "only a leaf is removed"
        self._unlink(parent, node)
        node.alive = False
        if parent.is_root:
            self.remove_root(parent)
        return parent

    def remove_root(self, root: PrefixNode) -> None:
        """Take a domain out if nothing is in it."""
        if root.alive and not root.children:
            root.alive = False
            bucket = [(domain, other) for domain, other in self._roots[root.root_key] if other is not root]
            if bucket:
                self._roots[root.root_key] = bucket
            else:
                del self._roots[root.root_key]

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node but the roots, ancestors first."""
        for bucket in self._roots.values():
            for _, root in bucket:
                yield from self.below(root)

    def below(self, node: PrefixNode) -> Iterator[PrefixNode]:
        """Every descendant of `node`, ancestors first."""
        waiting = [child for bucket in node.children.values() for child in bucket]
        while waiting:
            found = waiting.pop()
            yield found
            waiting.extend(child for bucket in found.children.values() for child in bucket)

    def check_integrity(self) -> None:
        """Assert that lengths, positions and links agree."""
        for node in self.nodes():
            n, rest = divmod(len(node.tokens), self.stride)
            assert node.alive, "an edge was removed and is still there"
            assert n > 0 == rest, "an edge has no whole blocks"
            assert all(len(ids) == n for ids in node.blocks), "an edge has another number of blocks than of ids"
            assert node.parent is not None, "an edge hangs on nothing"
            assert node.start == self.stop(node.parent), "an edge starts elsewhere"
            assert self.child(node.parent, bytes(node.tokens), 0) is node, "an edge cannot be found"
            assert all(node.start < at <= self.stop(node) for at in node.snapshots), "a snapshot lies elsewhere"
            for ids, first in zip(node.blocks, node.first_held, strict=True):
                assert not any(block_id is not None for block_id in ids[:first]), "a block lies before the first"

    def _key(self, parent: PrefixNode, first_block: bytes) -> bytes:
        return self._digest(parent.root_key + self.stop(parent).to_bytes(8, "little") + first_block)

    def _link(self, parent: PrefixNode, node: PrefixNode) -> None:
        node.key = self._key(parent, bytes(node.tokens[: self.stride]))
        parent.children.setdefault(node.key, []).append(node)

    def _unlink(self, parent: PrefixNode, node: PrefixNode) -> None:
        bucket = parent.children[node.key]
        bucket.remove(node)
        if not bucket:
            del parent.children[node.key]
