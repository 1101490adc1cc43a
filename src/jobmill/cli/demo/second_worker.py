"""The client of the process that `jobmill demo` kills. Its URL is in the environment."""

from jobmill.cli.demo.handlers import others
from jobmill.client.client import connect

jobs = connect()
jobs.handlers.update(others.handlers)
