"""The port on MongoDB: Monque's documents, worked by commands of our own, so that Node's processes may share them."""

from __future__ import annotations

from typing import Any, ClassVar

import pymongo
from pymongo.errors import OperationFailure

from jobmill.errors import SchemaTooOld, StoreError
from jobmill.stores.mongo import schema
from jobmill.stores.mongo.connection import told_apart
from jobmill.stores.mongo.values import new_object_id
from jobmill.stores.mongo.within import Within

OLDEST = (6, 0)
#: Of an index that is there with another name, or other options.
_OTHER = {85, 86}


class MongoStore(Within):
    """Jobs as Monque has them."""

    name: ClassVar[str] = "mongo"
    exchanges_in_flight: ClassVar[int] = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_checked = False

    @property
    def place(self) -> str:
        """The URL without its password, and the collection."""
        return self._place.shown

    async def open(self) -> None:
        """Connect, check version and indexes, measure the clock."""
        with told_apart(self._place):
            said = await self._learn_time()
            if not self._is_checked:
                await self._check_version()
                await self._check_indexes()
                self._is_checked = True
        if "setName" not in said and said.get("msg") != "isdbgrid":
            self._note_standalone()

    async def close(self) -> None:
        """Give all connections back, also those of other loops."""
        await self._watches.close()
        await self._link.close()

    async def migrate(self) -> list[str]:
        """Make the indexes that the option `indexes` asks for, those that are not there yet; their names."""
        with told_apart(self._place):
            await self._check_version()
            there = set(await self._index_names())
            missing = [one for one in schema.models(self._place.indexes) if one.document["name"] not in there]
            if missing:
                try:
                    with pymongo.timeout(None):  # of many documents that takes as long as it takes
                        await self._here.jobs.create_indexes(missing)
                except OperationFailure as error:
                    if error.code not in _OTHER:
                        raise
                    raise StoreError(
                        f"{self.place} has an index of its own where one of these is to be: {error}; "
                        "drop it, or say indexes=none in the URL and make them yourself"
                    ) from error
            self._hints = set(await self._index_names())
        return [str(one.document["name"]) for one in missing]

    def new_id(self) -> str:
        """An ObjectId."""
        return str(new_object_id())

    async def _check_version(self) -> None:
        """Partial indexes over several states are needed: MongoDB 6.0."""
        said = await self._here.database.command("buildInfo")
        if tuple(said["versionArray"][:2]) < OLDEST:
            raise StoreError(f"{self._place.url} is MongoDB {said['version']}; Jobmill needs MongoDB 6.0 or newer")

    async def _check_indexes(self) -> None:
        self._hints = set(await self._index_names())
        missing = [name for name in schema.NEEDED if name not in self._hints]
        if missing and self._place.indexes != "none":
            raise SchemaTooOld(
                f"{self.place} has no index {' and no '.join(missing)}, without which nothing is unique; "
                "is it the right database? If so run `jobmill migrate`"
            )

    async def _index_names(self) -> list[str]:
        cursor = await self._here.jobs.list_indexes()
        return [str(one["name"]) for one in await cursor.to_list()]
