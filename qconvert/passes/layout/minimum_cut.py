"""The labelling of least cost of a graph, as a minimum cut, by Dinic's algorithm (E. A. Dinic, 1970)."""

from __future__ import annotations

from collections import deque

#: The capacity of an edge that no cut takes.
INFINITE = 2**62


class FlowGraph:
    """Nodes are numbers; node 0 is the source side (label 0) and node 1 the sink side (label 1)."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # for each node, indices into the lists below
        self._head: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        """Add a node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge, which costs `capacity` when `tail` gets label 0 and `head` label 1."""
        for node, other, size in ((tail, head, capacity), (head, tail, 0)):
            self._edges[node].append(len(self._head))
            self._head.append(other)
            self._capacity.append(size)

    def labels(self) -> list[int]:
        """Return the label, 0 or 1, of each node in a labelling of least cost; nodes that may have either get 1."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return [0 if found >= 0 else 1 for found in level]
            position = [0] * len(self._edges)
            while self._push(level, position):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self._edges)
        level[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for index in self._edges[node]:
                head = self._head[index]
                if self._capacity[index] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level

    def _push(self, level: list[int], position: list[int]) -> int:
        """Send flow along one path of the level graph; return how much. Iterative, since models are deep."""
        path: list[int] = []
        node = 0
        while node != 1:
            if position[node] < len(self._edges[node]):
                index = self._edges[node][position[node]]
                if self._capacity[index] and level[self._head[index]] == level[node] + 1:
                    path.append(index)
                    node = self._head[index]
                else:
                    position[node] += 1
            elif path:
                node = self._head[path.pop() ^ 1]
                position[node] += 1
            else:
                return 0
        amount = min(self._capacity[index] for index in path)
        for index in path:
            self._capacity[index] -= amount
            self._capacity[index ^ 1] += amount
        return amount
