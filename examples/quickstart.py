"""Enqueue a job now and one for later, wait for the first, and work until Ctrl-C."""

import jobmill

jobs = jobmill.connect()  # sqlite:///jobmill.db; JOBMILL_URL or a URL given here names another store


@jobs.handler(max_attempts=5, timeout="30s")
async def greet(name: str) -> str:
    print(f"hello {name}")
    return f"greeted {name}"


async def main() -> None:
    now = await greet.enqueue(name="Ada")
    await greet.options(delay="3s").enqueue(name="Grace")
    print(await now.result(timeout="10s"))


if __name__ == "__main__":
    jobs.run(main)
