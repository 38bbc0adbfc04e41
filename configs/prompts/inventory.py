"""Keeps track of what is in stock, and where."""

import json
from dataclasses import dataclass, field


@dataclass
class Item:
    sku: str
    name: str
    quantity: int = 0
    price: float = 0.0
    tags: list = field(default_factory=list)

    def to_dict(self):
        return {
            "sku": self.sku,
            "name": self.name,
            "quantity": self.quantity,
            "price": self.price,
            "tags": list(self.tags),
        }

    @classmethod
    def from_dict(cls, data):
        return cls(
            sku=data["sku"],
            name=data["name"],
            quantity=int(data.get("quantity", 0)),
            price=float(data.get("price", 0.0)),
            tags=list(data.get("tags", [])),
        )


class Inventory:
    def __init__(self, items=None):
        self._items = {}
        for item in items or []:
            self.add(item)

    def add(self, item):
        if item.sku in self._items:
            raise ValueError("duplicate item: %s" % item.sku)
        self._items[item.sku] = item

    def remove(self, sku):
        if sku not in self._items:
            raise KeyError("unknown item: %s" % sku)
        return self._items.pop(sku)

    def increase(self, sku, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        item = self._items[sku]
        item.quantity += amount
        return item.quantity

    def decrease(self, sku, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        item = self._items[sku]
