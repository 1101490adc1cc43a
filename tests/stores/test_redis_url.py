"""What the URL of a Redis store says."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from jobmill.errors import InvalidValue
from jobmill.stores.redis.url import Address, RedisUrl, slot_of

pytestmark = pytest.mark.stores("redis")


def options(url: RedisUrl) -> dict[str, object]:
    return {name: value for name, value in url.options.items() if name != "connection_class"}


def test_what_is_left_out_is_the_usual() -> None:
    url = RedisUrl.read("redis://")
    assert (url.kind, url.hosts, url.prefix, url.layout) == ("single", (("localhost", 6379),), "bull", 6)
    assert url.address == "redis://localhost:6379/0, prefix bull"
    assert options(url) == {"db": 0}
    assert url.options["connection_class"] is Connection


def test_all_that_a_url_can_say() -> None:
    url = RedisUrl.read("redis://ada:s%40crt@db.example:7000/3?prefix={mail}&layout=5&socket_connect_timeout=1.5")
    assert (url.hosts, url.prefix, url.layout) == ((("db.example", 7000),), "{mail}", 5)
    assert options(url) == {"db": 3, "username": "ada", "password": "s@crt", "socket_connect_timeout": 1.5}
    assert url.address == "redis://ada@db.example:7000/3, prefix {mail}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://[::1]:7000/1", "redis://[::1]:7000/1"),
        ("redis://:secret@host", "redis://host:6379/0"),
        ("redis://host/", "redis://host:6379/0"),
        ("redis://host?db=4", "redis://host:6379/4"),
        ("rediss://host/2?ssl_cert_reqs=none&password=secret", "rediss://host:6379/2"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock, db 2"),
        ("unix://ada:secret@/run/redis.sock", "unix://ada@/run/redis.sock, db 0"),
        ("redis+cluster://u:secret@a,b:7001?prefix={x}", "redis+cluster://u@a:6379,b:7001"),
        ("rediss+cluster://a/", "rediss+cluster://a:6379"),
        ("redis+sentinel://:secret@a,b:7001/main/2", "redis+sentinel://a:26379,b:7001/main/2"),
        ("redis+sentinel://a/main?sentinel_password=secret&password=secret", "redis+sentinel://a:26379/main/0"),
    ],
)
def test_it_is_shown_without_secrets(url: str, shown: str) -> None:
    read = RedisUrl.read(url)
    assert read.text == shown
    assert "secret" not in f"{read!r}{read}{read.address}"


def test_each_scheme_has_its_connections() -> None:
    assert RedisUrl.read("rediss://a").options["connection_class"] is SSLConnection
    assert RedisUrl.read("rediss+cluster://a").options["connection_class"] is SSLConnection
    unix = RedisUrl.read("unix:///run/redis.sock")
    assert unix.options == {"connection_class": UnixDomainSocketConnection, "db": 0, "path": "/run/redis.sock"}
    assert unix.hosts == ()


def test_sentinels_have_credentials_of_their_own() -> None:
    url = RedisUrl.read("redis+sentinel://ada:one@a,b/main/2?sentinel_username=bob&sentinel_password=two")
    assert (url.service, url.hosts) == ("main", (Address("a", 26379), Address("b", 26379)))
    assert options(url) == {"db": 2, "username": "ada", "password": "one"}
    assert url.sentinel_options == {"username": "bob", "password": "two"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host", "url: expected redis://… or rediss://…"),
        ("redis://a,b", "redis+sentinel://… or redis+cluster://…"),
        ("redis://host:0", "url: expected redis://user:password@host:6379/0"),
        ("redis://host:66000", "url: expected redis://user:password@host:6379/0"),
        ("redis://host/zero", "url: expected redis://user:password@host:6379/0"),
        ("redis://host/0/1", "url: expected redis://user:password@host:6379/0"),
        ("redis://[::1", "got 'redis://…'"),
        ("unix://", "unix:///path/of/socket"),
        ("redis+cluster://host/1", "a cluster has one"),
        ("redis+cluster://host?db=1", "a cluster has one"),
        ("redis+sentinel://host", "redis+sentinel://host1:26379,host2:26379/service/0"),
        ("redis+sentinel://host//0", "redis+sentinel://host1:26379,host2:26379/service/0"),
        ("redis://host?sentinel_password=x", "sentinel_… with redis+sentinel:// only"),
        ("redis://host?layout=4", "layout: expected 6, or 5"),
        ("redis://host?prefix=", "prefix: expected"),
        ("redis://host?prefix=a%20b", "prefix: expected"),
        ("redis://host?protocol=3", "leave protocol out"),
        ("redis://host?decode_responses=1", "leave decode_responses out"),
        ("redis://host?sokket=3", "options that redis-py's connections have"),
        ("redis://host?socket_connect_timeout=soon", "Invalid value for 'socket_connect_timeout'"),
        ("redis://host?db=x", "Invalid value for 'db'"),
        ("rediss://host?ssl_cert_reqs=never", "options that redis-py's connections have"),
    ],
)
def test_what_makes_no_sense_is_refused(url: str, said: str) -> None:
    secret = url.replace("://", "://ada:secret@", 1) if "@" not in url else url
    with pytest.raises(InvalidValue) as refused:
        RedisUrl.read(secret)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("queue", ["{mail}", "mail-{eu}", "{a}{}", "{{a}"])
def test_a_hash_tag_is_enough_on_a_cluster(queue: str) -> None:
    url = RedisUrl.read("redis+cluster://a")
    url.check_queue(queue)
    assert slot_of(f"bull:{queue}:wait") == slot_of(f"bull:{queue}:active")
    RedisUrl.read("redis+cluster://a?prefix={bull}").check_queue("mail")


@pytest.mark.parametrize("queue", ["mail", "{mail", "mail}", "{}mail", "}mail{", "{}{mail}"])
def test_without_one_a_queue_is_refused_on_a_cluster_only(queue: str) -> None:
    assert slot_of(f"bull:{queue}:wait") != slot_of(f"bull:{queue}:active")
    with pytest.raises(InvalidValue, match="queue: expected a queue name or prefix with a hash tag, such as {mail}"):
        RedisUrl.read("redis+cluster://a").check_queue(queue)
    RedisUrl.read("redis://a").check_queue(queue)
    RedisUrl.read("redis+sentinel://a/main").check_queue(queue)
