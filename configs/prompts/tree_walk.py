class Node:
    """A node of a binary search tree."""

    def __init__(self, key, value, left=None, right=None):
        self.key = key
        self.value = value
        self.left = left
        self.right = right


class Tree:
    def __init__(self):
        self.root = None
        self.size = 0

    def insert(self, key, value):
        if self.root is None:
            self.root = Node(key, value)
            self.size += 1
            return
        node = self.root
        while True:
            if key == node.key:
                node.value = value
                return
            if key < node.key:
                if node.left is None:
                    node.left = Node(key, value)
                    self.size += 1
                    return
                node = node.left
            else:
                if node.right is None:
                    node.right = Node(key, value)
                    self.size += 1
                    return
                node = node.right

    def find(self, key):
        node = self.root
        while node is not None:
            if key == node.key:
                return node.value
            if key < node.key:
                node = node.left
            else:
                node = node.right
        return None

    def minimum(self):
        node = self.root
        while node is not None and node.left is not None:
            node = node.left
        return node

    def maximum(self):
        node = self.root
