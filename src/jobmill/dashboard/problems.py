"""What went wrong, as a page or JSON says it."""

from __future__ import annotations

import logging
from http import HTTPStatus

from msgspec import Struct
from starlette.exceptions import HTTPException

from jobmill.dashboard.runs import RunNotFound
from jobmill.dashboard.view import NotAllowed
from jobmill.errors import (
    InvalidValue,
    JobmillError,
    JobNotFound,
    LoginRefused,
    SchemaTooOld,
    StoreBusy,
    StoreUnavailable,
)

log = logging.getLogger("jobmill")


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request has no answer: a heading, what happened, and what to do."""

    status: int
    title: str
    text: str
    advice: str | None = None
    #: Since when the store cannot be used, and whether that is so for workers and applications as well.
    since_ms: int | None = None
    #: The id of a job that is gone: the audit log may say who removed it.
    gone_job: str | None = None
    is_for_all: bool = False


def problem_of(error: Exception, down_since_ms: int | None = None, id: str | None = None) -> Problem:
    """The problem that an error is, about the job with this id if the request names one. Unexpected ones are logged."""
    match error:
        case NotAllowed():
            advice = "Ask the people who run this dashboard."
            return Problem(
                status=403, title="Not allowed", text=f"{str(error)[0].upper()}{str(error)[1:]}.", advice=advice
            )
        case JobNotFound():
            advice = "It was removed, or the time for which it is kept is over. The audit log says who removed it."
            # The same words for a job of another tenant.
            text = "There is no job with this id."
            return Problem(status=404, title="This job is gone", text=text, advice=advice, gone_job=id)
        case RunNotFound():
            text, advice = f"{str(error)[0].upper()}{str(error)[1:]}.", "The audit log has its result."
            return Problem(status=404, title="This run is gone", text=text, advice=advice)
        case InvalidValue():
            return Problem(status=400, title="This cannot be read", text=str(error))
        case HTTPException(status_code=404):
            is_usual = error.detail == HTTPStatus.NOT_FOUND.phrase
            text = "There is nothing at this address." if is_usual else error.detail
            return Problem(status=404, title="No such page" if is_usual else "Not found", text=text)
        case HTTPException(status_code=status):
            return Problem(status=status, title="Not possible", text=error.detail)
        case SchemaTooOld():
            return Problem(status=503, title="The store needs a migration", text=str(error))
        case StoreUnavailable():
            is_login = isinstance(error, LoginRefused)
            what = "refuses the login" if is_login else "is busy" if isinstance(error, StoreBusy) else "does not answer"
            title = f"The store {what}"
            return Problem(status=503, title=title, text=str(error), since_ms=down_since_ms, is_for_all=not is_login)
        case JobmillError():
            return Problem(status=500, title="This did not work", text=str(error))
        case _:
            log.exception("the dashboard failed", exc_info=error)
            text = f"The dashboard failed: {type(error).__name__}."
            return Problem(
                status=500, title="This did not work", text=text, advice="The log of the dashboard has the traceback."
            )
