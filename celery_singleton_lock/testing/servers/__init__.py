"""Real servers on free ports of 127.0.0.1, for tests, demos and benchmarks.

::

    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)
        server.kill()
        server.restart()

Every server keeps its files in a temporary directory, is ended by its pid, and ends with the
process that started it. What cannot be found on this machine raises `ServerMissing` at the start.
"""

from __future__ import annotations

from .cluster import RedisCluster
from .errors import ServerFailed, ServerMissing
from .group import ServerGroup
from .mariadb import MariaDBServer
from .postgres import PostgresServer
from .process import Server
from .proxy import TcpProxy
from .rabbitmq import RabbitMQServer
from .redis import RedisServer
from .sentinel import SentinelSet

__all__ = [
    "MariaDBServer",
    "PostgresServer",
    "RabbitMQServer",
    "RedisCluster",
    "RedisServer",
    "SentinelSet",
    "Server",
    "ServerFailed",
    "ServerGroup",
    "ServerMissing",
    "TcpProxy",
]
