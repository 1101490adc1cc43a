"""What pymongo logs by itself."""

from __future__ import annotations

import pytest
from pymongo.errors import AutoReconnect
from pymongo.logger import _log_client_error

import jobmill.stores.mongo.connection  # noqa: F401 - it shortens what pymongo logs

pytestmark = pytest.mark.stores("mongo")


def _logged(error: Exception, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    try:
        raise error
    except Exception:
        _log_client_error()
    return caplog.text


def test_a_lost_connection_in_the_background_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    text = _logged(AutoReconnect("127.0.0.1:27017: connection reset by peer"), caplog)
    assert "MongoClient background task encountered an error: 127.0.0.1:27017: connection reset by peer" in text
    assert text.count("\n") == 1
    assert "WARNING" in text


def test_a_fault_in_the_background_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert "Traceback" in _logged(KeyError("cursor"), caplog)
