#!/usr/bin/env python3
"""Everything a developer runs, from a bare Python 3.11 with pip; the environment is made on first use.

    python3 dev.py demo [ARGS]                          watch jobs run
    python3 dev.py test [--store NAME] [PYTEST ARGS]    run the tests, or one store's
    python3 dev.py test -m "not slow"                   the quick ones only
    python3 dev.py test --all                           also older servers, the test kit, the benchmark, long fault runs
    python3 dev.py coverage [PYTEST ARGS]               run the tests, report lines and branches that none reaches
    python3 dev.py check                                lint, format, types, layers, rules of our own, the site
    python3 dev.py site                                 build the site and serve it on http://127.0.0.1:8000
    python3 dev.py bench [ARGS]                         measure, side by side with a peer

The environment is .venv next to this file, or the directory that JOBMILL_VENV names.
Commands run in this file's directory: paths in ARGS start there.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Before any newer syntax is evaluated; the file parses from Python 3.6 on, so that old ones reach this sentence.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"dev.py: Jobmill needs Python 3.11 or newer, and this is {sys.version.split()[0]}.")

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("JOBMILL_VENV") or ROOT / ".venv").absolute()
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST_PIP = (22, 3)  # the first with --python

# What the installed environment depends on, besides the interpreter and the place.
INPUTS = ("pyproject.toml", "constraints.txt", "src/jobmill/_version.py")

# Processes for tests, which wait for servers and for time: half as many again as there are processors.
WORKERS = min((os.cpu_count() or 1) * 3 // 2, 8) or 1
# With --all many tests keep all processors busy themselves: kills, bursts, browsers. More at a time only disturb them.
WORKERS_FOR_ALL = min(os.cpu_count() or 1, 8)

# verb: (the extra it needs, what Python is to run)
COMMANDS = {
    "demo": ("", ["-m", "jobmill", "demo"]),
    "test": ("test", ["-m", "pytest"]),
    "bench": ("bench", ["-m", "bench"]),
    "site": ("dev", ["-m", "checks.site", "--serve"]),
}
# With -m or -c, never a script of the environment: their first lines hold its path, and break when the tree is moved.
CHECKS = {
    "lint": ["-m", "ruff", "check"],
    "format": ["-m", "ruff", "format", "--check"],
    "types": ["-m", "mypy"],
    "layers": ["-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-logo"],
    "house": ["-m", "checks"],
    "site": ["-m", "checks.site"],
}


class Problem(Exception):
    """Something the reader can mend; the message is a sentence that says how."""


def main(arguments: Sequence[str]) -> int:
    """Run one verb and answer its exit code."""
    verb, *rest = arguments or ["--help"]
    if verb in ("-h", "--help", "help"):
        print(__doc__.strip())
        return 0
    try:
        if verb in COMMANDS:
            extra, command = COMMANDS[verb]
            prepare(extra_for_tests(rest) if verb == "test" else extra)
            return hand_over([*command, *(parallel(rest) if verb == "test" else rest)])
        if verb == "coverage":
            prepare(extra_for_tests(rest))
            return coverage(rest)
        if verb == "check" and not rest:
            prepare("dev")  # mypy reads tests and bench too, and needs what they import
            return check()
    except (Problem, OSError) as problem:
        print(f"dev.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    wrong = "check takes no arguments" if verb == "check" else f"there is no verb {verb!r}"
    print(f"dev.py: {wrong}\n\n{__doc__.strip()}", file=sys.stderr)
    return 2


def extra_for_tests(arguments: Sequence[str]) -> str:
    """What the tests need: those of the benchmark, the site and other systems need more packages."""
    needs_more = ("tests/bench", "tests/compat", "test_site")
    is_for_more = any(argument == "--all" or any(one in argument for one in needs_more) for argument in arguments)
    return "dev" if is_for_more else "test"


def parallel(arguments: Sequence[str]) -> list[str]:
    """The arguments for pytest, and before them our number of processes: the last `-n` counts, so the user's wins."""
    if "no:xdist" in arguments:
        return list(arguments)
    processes = WORKERS_FOR_ALL if "--all" in arguments else WORKERS
    return [f"-n{processes}", "--dist=worksteal", *arguments]


def hand_over(command: Sequence[str]) -> int:
    """Become the command, so that its signals and its exit code are its own."""
    sys.stdout.flush()
    os.chdir(ROOT)
    keep_bytecode()
    if os.name != "nt":  # where exec returns to the shell at once
        os.execv(PYTHON, [str(PYTHON), *command])
    return subprocess.call([PYTHON, *command])


def keep_bytecode() -> None:
    """Keep it in the environment where the tree is to stay clean: without it each of hundreds of processes compiles."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(VENV / "bytecode")


def coverage(arguments: Sequence[str]) -> int:
    """Run the tests, then report what they covered; the first exit code that is not 0."""
    keep_bytecode()
    run = [str(PYTHON), "-m", "coverage"]
    subprocess.call([*run, "erase"], cwd=ROOT)
    tested = subprocess.call([*run, "run", "-m", "pytest", *parallel(arguments)], cwd=ROOT)
    subprocess.call([*run, "combine", "-q"], cwd=ROOT)
    return subprocess.call([*run, "report"], cwd=ROOT) or tested


def check() -> int:
    """Run every check, also after one has failed, and sum up."""
    summary = []
    failed = False
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        code = subprocess.call([PYTHON, *command], cwd=ROOT)
        failed = failed or code != 0
        summary.append(f"{name:<8}{'FAILED' if code else 'ok':<8}{time.perf_counter() - start:5.1f} s")
    print("", *summary, sep="\n")
    return int(failed)


def prepare(extra: str) -> None:
    """Make sure that the environment exists and holds the package with this extra, as the files now ask for it."""
    if is_ready(extra):
        return
    with alone():
        if is_ready(extra):  # another dev.py was faster
            return
        builder = python_with_pip()
        if not is_sound():
            create(builder)
        install(builder, extra)
        stamp_file(extra).write_text(stamp())


def is_ready(extra: str) -> bool:
    """Whether a stamp vouches for this extra; `dev` holds all the others."""
    return PYTHON.exists() and any(
        file.exists() and file.read_text() == stamp() for file in (stamp_file(extra), stamp_file("dev"))
    )


def stamp_file(extra: str) -> Path:
    return VENV / f".jobmill-{extra or 'base'}"


def stamp() -> str:
    """A digest of all that an installation depends on: the files, the interpreter, the place."""
    digest = hashlib.sha256(repr((sys.version, str(ROOT), str(VENV))).encode())
    for name in INPUTS:
        path = ROOT / name
        digest.update(path.read_bytes() if path.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()


def is_sound() -> bool:
    """Whether the environment's interpreter starts, is a virtual one, and is of the version that runs this file."""
    probe = "import sys; print(sys.prefix != sys.base_prefix, repr(sys.version))"
    try:
        answer = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.stdout.strip() == f"True {sys.version!r}"


def create(builder: str) -> None:
    """Make the environment, in the place of a broken one if need be, but never in the place of anything else."""
    is_foreign = VENV.exists() and not (VENV / "pyvenv.cfg").exists()
    if is_foreign and (not VENV.is_dir() or any(VENV.iterdir())):
        raise Problem(f"{VENV} is not a virtual environment: remove it, or name another place in JOBMILL_VENV.")
    # --without-pip: Debian's python3 has no ensurepip. pip --python installs from outside.
    if subprocess.call([builder, "-m", "venv", "--clear", "--without-pip", VENV]):
        raise Problem(f"the virtual environment {VENV} could not be made; the reason stands above.")


def install(builder: str, extra: str) -> None:
    """Install what the extra needs of constraints.txt, by its hashes, and then the package itself, editable."""
    print(
        f"dev.py: installing jobmill{f'[{extra}]' if extra else ''} into {VENV} (some seconds, once)",
        file=sys.stderr,
        flush=True,
    )
    pinned, end, _ = (ROOT / "constraints.txt").read_text().partition(f"# end of {extra or 'base'}\n")
    if not end:
        raise Problem(
            f"constraints.txt has no line `# end of {extra or 'base'}`: write it with `python3 -m checks.pin`."
        )
    (VENV / "pinned.txt").write_text(pinned)
    pip = [builder, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check", "--no-input", "-qq", "install"]
    # What builds the package is pinned too. A build in isolation would download it anew, without hashes.
    packages, own = ["--require-hashes", "-r", str(VENV / "pinned.txt")], ["--no-build-isolation", "-e", "."]
    if any(subprocess.call([*pip, "--no-deps", *one], cwd=ROOT) for one in (packages, own)):
        raise Problem("the installation failed, and pip says why above. It needs to reach a package index.")


def python_with_pip() -> str:
    """This interpreter or, when it is a virtual one without pip, the one that it was made from."""
    found = ""
    base: str = getattr(sys, "_base_executable", sys.executable)
    for python in dict.fromkeys([sys.executable, base]):
        pip = [python, "-m", "pip", "--version"]
        answer = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            found = answer.stdout.split()[1]
            if tuple(int(part) for part in found.split(".")[:2]) >= OLDEST_PIP:
                return python
    have = f"pip {found} is too old" if found else "pip is missing"
    raise Problem(
        f"{have}: {sys.executable} needs pip {OLDEST_PIP[0]}.{OLDEST_PIP[1]} or newer. "
        "Get it with `python3 -m ensurepip --upgrade` or, on Debian and Ubuntu, `apt install python3-pip`."
    )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of the environment. The file lies beside it, because making it anew empties it."""
    try:
        VENV.parent.mkdir(parents=True, exist_ok=True)
        lock = VENV.with_name(VENV.name + ".lock").open("w")
    except OSError as error:
        raise Problem(f"{error}. Name a directory for the environment in JOBMILL_VENV.") from error
    with lock:
        if sys.platform != "win32":  # where two dev.py at once are not guarded against
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("dev.py: waiting for another dev.py, which is installing", file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
