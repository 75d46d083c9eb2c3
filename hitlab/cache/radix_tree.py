"""The compressed radix tree of SGLang's prefix cache; its rules, S2 to S8, stand at the top of radix.py."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator

#: Token ids; the tree takes any hashables, so traces that come as block ids need no tokens.
Tokens = tuple[Hashable, ...]


class TreeNode:
    """An edge of the tree and what hangs below it; the root's is empty."""

    __slots__ = ("children", "extra_key", "lock_ref", "parent", "token_ids")

    def __init__(self, parent: "TreeNode | None", token_ids: Tokens, extra_key: str | None) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.extra_key = extra_key
        self.lock_ref = 0
        self.children: dict[tuple[str | None, Tokens], TreeNode] = {}


class RadixTree:
    """The tree, its recency and its locks; knows nothing of requests.

    >>> tree = RadixTree(page_size=1)
    >>> _ = tree.insert((1, 2, 3, 4)), tree.insert((1, 2, 8, 9, 9))
    >>> tree.match_prefix((1, 2, 8))[1]
    3
    >>> tree.evict_leaf(), tree.total_size  # (3, 4), as one leaf
    (2, 5)
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        #: Tokens in the tree, and those of them that are locked.
        self.total_size = 0
        self.protected_size = 0
        self.root_node = TreeNode(None, (), None)
        #: Every node but the root, the least recent first (S2). A parent made recent just before its child is
        #: that bit older, so the order alone stands for the engine's time stamps.
        self.recency: OrderedDict[TreeNode, None] = OrderedDict()

    @property
    def evictable_size(self) -> int:
        """Tokens in the tree that are not locked."""
        return self.total_size - self.protected_size

    def match_prefix(self, token_ids: Tokens, extra_key: str | None = None) -> tuple[TreeNode, int]:
        """The deepest node that is a prefix of the tokens, and its depth in tokens (S3)."""
        node, depth, path = self.root_node, 0, []
        while depth < len(token_ids):
            child = self.get_child(node, token_ids, depth, extra_key)
            if child is None:
                break
            node = self.cut(child, token_ids, depth)
            depth += len(node.token_ids)
            path.append(node)
        for node_on_path in path:
            self.recency.move_to_end(node_on_path)
        return node, depth

    def insert(self, token_ids: Tokens, extra_key: str | None = None) -> TreeNode:
        """Make the tokens, whole pages, resident; the node that ends where they do (S8)."""
        node, depth = self.root_node, 0
        while depth < len(token_ids):
            child = self.get_child(node, token_ids, depth, extra_key)
            if child is None:
                node = self.add_node(TreeNode(node, token_ids[depth:], extra_key))
                self.total_size += len(node.token_ids)
                break
            self.recency.move_to_end(child)
            node = self.cut(child, token_ids, depth)
            depth += len(node.token_ids)
        return node

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Keep the node and its ancestors from eviction (S5)."""
        while node.parent is not None:
            if not node.lock_ref:
                self.protected_size += len(node.token_ids)
            node.lock_ref += 1
            node = node.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref`."""
        while node.parent is not None:
            node.lock_ref -= 1
            if not node.lock_ref:
                self.protected_size -= len(node.token_ids)
            node = node.parent

    def evict_leaf(self) -> int:
        """Take the least recent unlocked leaf away; how many tokens it had (S7). LookupError without one."""
        for leaf in self.evictable_leaves():
            return self.remove_leaf(leaf)
        raise LookupError("every leaf is locked")

    def evictable_leaves(self) -> Iterator[TreeNode]:
        """The leaves that are not locked, the least recent first (S5, S7)."""
        # An inner node is as recent as its latest child, give or take that path, so few are passed over.
        return (node for node in self.recency if not node.children and not node.lock_ref)

    def get_child(self, node: TreeNode, token_ids: Tokens, depth: int, extra_key: str | None) -> TreeNode | None:
        """The child that the tokens from `depth` on go along with for at least a page (S2)."""
        return node.children.get(self.get_child_key(token_ids, depth, extra_key))

    def get_child_key(self, token_ids: Tokens, depth: int, extra_key: str | None) -> tuple[str | None, Tokens]:
        """What a child that begins at `depth` is found by (S2)."""
        return extra_key, token_ids[depth : depth + self.page_size]

    def add_node(self, node: TreeNode) -> TreeNode:
        """Hang a node below its parent, as the most recent of all."""
        assert node.parent is not None
        node.parent.children[self.get_child_key(node.token_ids, 0, node.extra_key)] = node
        self.recency[node] = None
        return node

    def remove_leaf(self, node: TreeNode) -> int:
        """Take a leaf out of the tree; how many tokens it had. Its parent stays as recent as it was (S7)."""
        assert node.parent is not None
        del node.parent.children[self.get_child_key(node.token_ids, 0, node.extra_key)]
        del self.recency[node]
        self.total_size -= len(node.token_ids)
        return len(node.token_ids)

    def cut(self, node: TreeNode, token_ids: Tokens, depth: int) -> TreeNode:
        """The part of the node, in whole pages, that the tokens from `depth` on go along with (S3, S4)."""
        ahead = token_ids[depth : depth + len(node.token_ids)]
        if ahead == node.token_ids:
            return node
        shared = common_prefix(node.token_ids, ahead)
        return self.split_node(node, shared - shared % self.page_size)

    def split_node(self, node: TreeNode, split_len: int) -> TreeNode:
        """Cut a node in two after so many tokens; the upper part. Both become the most recent (S4)."""
        upper = self.add_node(TreeNode(node.parent, node.token_ids[:split_len], node.extra_key))
        upper.lock_ref = node.lock_ref
        node.token_ids = node.token_ids[split_len:]
        node.parent = upper
        upper.children[self.get_child_key(node.token_ids, 0, node.extra_key)] = node
        self.recency.move_to_end(node)
        return upper


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many tokens the two begin with alike.

    >>> common_prefix((1, 2, 3, 4), (1, 2, 9, 4)), common_prefix((1, 2), (1, 2, 3)), common_prefix((), (1,))
    (2, 2, 0)
    """
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing whole slices leaves the loop over tokens to C
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
