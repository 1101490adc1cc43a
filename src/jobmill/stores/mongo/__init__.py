"""The store on MongoDB, which shares its collection with Monque."""

from jobmill.stores.mongo.store import MongoStore

__all__ = ["MongoStore"]
