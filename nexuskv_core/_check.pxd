# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Looking inside: the rules of the stored structure, node by node, and what is stored. Slow."""
from libc.stdint cimport uint32_t, uint64_t

from nexuskv_core._store cimport (
    BLOCK_BITS, ENTRY, NODE_BITS, RUN, TAIL, Block, GroupBody, Node, Store, Table, block_at,
    block_tokens_at, node_at,
)
from nexuskv_core._table cimport find_block, find_entry
from nexuskv_core._treap cimport compare_nodes, lower_entry, own_best, own_count
from nexuskv_core._tokens cimport hash_bytes
from nexuskv_core._trie cimport FLAG_FINE, FLAG_PARTIAL, RULE_MASK


cdef inline object check_treap(
    Store* s, uint32_t root, uint32_t owner, uint32_t kind, list found
):
    """Appends the members in order."""
    cdef Node* node = node_at(s, root)
    cdef Node* left = node_at(s, node.left)
    cdef Node* right = node_at(s, node.right)
    if root == 0:
        return
    assert node.kind == kind and node.owner == owner, "a member knows its owner"
    assert node.left == 0 or (
        left.up == root and left.priority <= node.priority
    ), "heap order"
    assert node.right == 0 or (
        right.up == root and right.priority <= node.priority
    ), "heap order"
    assert node.count == own_count(s, root) + left.count + right.count, "counts add up"
    assert node.best == lower_entry(
        s, own_best(s, root), lower_entry(s, left.best, right.best)
    ), "the best entry is the lowest"
    check_treap(s, node.left, owner, kind, found)
    if found:
        before = found[len(found) - 1]
        assert compare_nodes(s, node_at(s, before), node) < 0, "siblings are in order"
    found.append(root)
    check_treap(s, node.right, owner, kind, found)


cdef inline object members(Store* s, uint32_t root, uint32_t owner, uint32_t kind):
    found: list = []
    assert root == 0 or node_at(s, root).up == 0, "a root has nothing above"
    check_treap(s, root, owner, kind, found)
    return found


cdef inline uint64_t check_entries(Store* s, uint32_t root, uint32_t owner):
    numbers = members(s, root, owner, ENTRY)
    for number in numbers:
        found = find_entry(s, node_at(s, number).u.entry.entry)
        assert found == number, "an entry is in its table"
    return len(numbers)


cdef inline object check_blocks(Store* s, uint32_t number, GroupBody* group):
    cdef Node* node = node_at(s, number)
    cdef uint32_t at = node.u.run.first
    cdef uint32_t i
    cdef Block* block
    for i in range(node.u.run.length):
        block = block_at(s, at)
        assert block.run == number, "a block knows its run"
        assert find_block(s, block.lo, block.hi) == at, "a block is in its table"
        fine = group.flags & FLAG_FINE != 0
        assert (block_tokens_at(s, at) != NULL) == fine, "tokens are kept where needed"
        if i + 1 == node.u.run.length:
            assert at == node.u.run.last and block.next == 0, "a run ends at its last block"
        at = block.next


cdef inline object check_run(Store* s, uint32_t number, uint32_t group, list totals):
    """Adds this run and all below to totals: entries, blocks, nodes."""
    cdef Node* node = node_at(s, number)
    tails = members(s, node.u.run.tails, number, TAIL)
    children = members(s, node.u.run.children, number, RUN)
    cdef Node* tail
    assert node.u.run.group == group, "a run knows its group"
    if node.owner:
        assert node.u.run.length > 0, "a run has blocks"
        assert node.u.run.depth == (
            node_at(s, node.owner).u.run.depth + node.u.run.length
        ), "depths add up"
        assert node.u.run.entries or tails or len(children) > 1, "a run ends for a reason"
    else:
        assert node.u.run.length == 0 and node.u.run.depth == 0, "a root has no blocks"
        assert node.u.run.entries == 0 and own_count(s, number), "a root has something below"
    check_blocks(s, number, &node_at(s, group).u.group)
    entries = check_entries(s, node.u.run.entries, number)
    for child in tails:
        tail = node_at(s, child)
        assert 0 < tail.u.tail.length < s.block_tokens, "a tail is shorter than a block"
        below = check_entries(s, tail.u.tail.entries, child)
        assert below, "a tail has entries"
        entries += below
    totals[0] += entries
    totals[1] += node.u.run.length
    totals[2] += 1 + entries + 2 * len(tails)
    for child in children:
        check_run(s, child, group, totals)


cdef inline uint64_t table_used(Table* t):
    cdef uint64_t used = 0
    cdef uint64_t at
    for at in range(t.mask + 1):
        used += t.slots[at] != 0
    return used


cdef inline object check_free(Store* s, uint64_t nodes_used):
    cdef uint64_t length = 0
    cdef uint32_t at, kind
    for kind in range(2):
        length = 0
        at = s.free_blocks[kind]
        while at:
            length += 1
            at = block_at(s, at).next
        assert length == s.free_block_count[kind], "free blocks are counted"
    assert (
        s.block_count + s.free_block_count[0] + s.free_block_count[1] + 1
        == <uint64_t>s.blocks.used << BLOCK_BITS
    ), "every block is used or free"
    length = 0
    at = s.free_nodes
    while at:
        length += 1
        at = node_at(s, at).up
    assert length == s.free_node_count, "free nodes are counted"
    assert nodes_used + length + 1 == <uint64_t>s.nodes.used << NODE_BITS, (
        "every node is used or free"
    )


cdef inline object check_store(Store* s, list groups):
    totals = [0, 0, 0]
    for group in groups:
        check_run(s, node_at(s, group).u.group.root, group, totals)
    assert totals[0] == s.entry_count == s.entry_table.used, "entries are counted"
    assert totals[1] == s.block_count == s.block_table.used, "blocks are counted"
    assert table_used(&s.entry_table) == s.entry_table.used, "table slots are counted"
    assert table_used(&s.block_table) == s.block_table.used, "table slots are counted"
    check_free(s, totals[2] + len(groups))


cdef inline tuple describe_entry(Store* s, uint32_t number):
    """A row of `PrefixIndex.dump`."""
    cdef Node* node = node_at(s, number)
    cdef Node* holder = node_at(s, node.owner)
    cdef uint64_t length = 0
    cdef GroupBody* group
    if holder.kind == TAIL:
        length = holder.u.tail.length
        holder = node_at(s, holder.owner)
    length += <uint64_t>holder.u.run.depth * s.block_tokens
    group = &node_at(s, holder.u.run.group).u.group
    return (
        hash_bytes(group.k0, group.k1), group.flags & RULE_MASK, group.unit,
        group.flags & FLAG_PARTIAL != 0, length, node.u.entry.order, node.u.entry.entry,
    )
