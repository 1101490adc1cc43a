"""Very many jobs of ours on MongoDB, in seconds: copies of one, made by the server itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo import MongoClient

from jobmill.stores.mongo.schema import models
from jobmill.stores.mongo.url import MongoUrl


def multiply(url: str, total: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Have so many copies of the one job there instead of it, and the indexes.

    `change`, given the job, tells the fields in which its copies differ: expressions in `$n`, the copy's number. Ids
    begin as the job's own does, and a zero-padded number follows.
    """
    place = MongoUrl.read(url)
    with MongoClient[dict[str, Any]](place.driver_url) as client:
        database = client[place.database]
        [one] = database[place.collection].find()
        database[place.collection].drop()
        number = {"$substrCP": [{"$toString": {"$add": ["$n", 10**12]}}, 1, 12]}
        id = {"$toObjectId": {"$concat": [str(one["_id"])[:12], number]}}
        copy = {name: {"$literal": value} for name, value in one.items()} | {"_id": id} | change(one)
        numbers = {"$map": {"input": {"$range": [0, 1_000]}, "in": {"$add": ["$n", "$$this"]}}}
        database.aggregate(
            [
                {"$documents": [{"n": first} for first in range(0, total, 1_000)]},
                {"$project": {"n": numbers}},
                {"$unwind": "$n"},
                {"$match": {"n": {"$lt": total}}},
                {"$replaceWith": copy},
                {"$out": place.collection},
            ]
        )
        # Not by `migrate`: many indexes of a million jobs take longer than a call of the store may.
        database[place.collection].create_indexes(models(place.indexes))


def multiply_finished(url: str, total: int) -> None:
    """The same of a job that has run, each copy finished a little earlier."""
    multiply(url, total, lambda one: {"updatedAt": {"$subtract": [one["updatedAt"], "$n"]}})
