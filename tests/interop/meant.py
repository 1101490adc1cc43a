"""Where our data differs from Node's for a good reason: by test, which lines of the comparison, and why.

A line is `<key> <what differs>`. What is listed here and does not show up any more fails its test.
"""

from __future__ import annotations

_FIRST_DUE = "ours names the delayed job that is now the first, Node leaves the time of the one that is gone"
_OWN_STACK = "the stack of Node's own code, which failed the job without running it; we have none to show"
_OWN_WORDS = "our own words for why a parent cannot succeed; Node does not name the child"

MEANT: dict[str, dict[str, str]] = {
    "test_promote": {r"^bull:mail:marker ": _FIRST_DUE},
    "test_promote_all": {
        r"^bull:mail:[abc] delay": "Node's promotion of all leaves `delay`, ours is the promotion of each",
        r"^bull:mail:(pc|prioritized|wait) ": "and forgets priorities, which ours keeps",
    },
    "test_retry_all": {
        r"^bull:mail:[abc] atm": "a job that is requeued has fresh budgets",
        r"^bull:mail:(pc|prioritized|wait) ": "Node's retry of all forgets priorities, ours keeps them",
    },
    "test_requeue_what_completed": {
        r"^bull:mail:a progress": "a job that is requeued through the port starts afresh, its progress too"
    },
    "test_stalled": {
        r"^bull:mail:active ": "Node puts a stalled job into `wait` and claims it again, we take it over where it is",
        r"^bull:mail:stalled ": "the candidates of Node's own look for stalled jobs; we look at locks",
    },
    "test_stalled_more_often_than_node_allows": {
        r"^bull:mail:a defa": "Node notes the failure for the next claim, we are that claim",
        r"^bull:mail:a stacktrace": _OWN_STACK,
    },
    "test_a_child_fails[fail]": {
        r"^bull:parents:p defa": "a job of ours names the dependency as the port knows it, and its error"
    },
    "test_a_child_fails[fails the parent]": {r"^bull:parents:p stacktrace": _OWN_STACK},
    "test_a_parent_runs_before_a_child_is_finished": {r"^bull:parents:p (failedReason|stacktrace)": _OWN_WORDS},
    "test_a_parent_runs_before_a_child_is_finished[1]": {r"^bull:parents:events ": _OWN_WORDS},
    "test_a_child_fails_while_its_parent_runs": {r"^bull:parents:(events|p (failedReason|stacktrace))": _OWN_WORDS},
    "test_a_failure_goes_up_through_the_generations": {
        r"^bull:children:a stacktrace": _OWN_STACK,
        r"^bull:parents:p stacktrace": _OWN_STACK,
    },
}
