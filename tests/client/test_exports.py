"""What the package offers, and that all of it is described."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobmill
from jobmill import errors

PACKAGE = Path(jobmill.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_all_names_what_the_package_exports() -> None:
    """Names are imported when somebody asks for them: what can be asked for, and what type checkers are told."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    told = imported - {"annotations", "import_module", "Any", "TYPE_CHECKING"}
    assert told == set(jobmill.__all__)
    assert jobmill.__all__ == sorted(set(jobmill.__all__))
    assert set(jobmill.__all__) <= set(dir(jobmill))
    for name in jobmill.__all__:
        assert getattr(jobmill, name) is not None
    with pytest.raises(AttributeError, match="module 'jobmill' has no attribute 'nope'"):
        jobmill.nope  # noqa: B018


def test_every_error_is_exported_and_drawn_in_the_tree() -> None:
    defined = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined.keys() <= set(jobmill.__all__)
    tree = errors.__doc__ or ""
    drawn = {match[2]: len(match[1]) for match in re.finditer(r"^(    [│ ]*[├└]?─* ?)([A-Z]\w+)", tree, re.MULTILINE)}
    for name, error in defined.items():
        if not issubclass(error, errors.JobmillError):
            assert name in tree.partition("For handlers")[2]
            continue
        parent = error.__bases__[0].__name__
        assert name in drawn
        if error is not errors.JobmillError:
            assert drawn[name] == drawn[parent] + 4, f"{name} hangs from {parent}"


def test_the_errors_that_are_also_pythons_own() -> None:
    assert issubclass(errors.InvalidValue, ValueError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
    for steering in (errors.Fail, errors.Snooze):
        assert not issubclass(steering, errors.JobmillError)


def described(tree: ast.Module, *, methods: bool) -> Iterator[tuple[str, bool]]:
    """Every public class, function and method, and whether it has a docstring."""
    yield from functions(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) is not None
            if methods:
                yield from ((f"{node.name}.{name}", told) for name, told in functions(node.body))


def promised(tree: ast.Module) -> set[str]:
    """The methods that the protocols of a module describe."""
    protocols = [node for node in tree.body if isinstance(node, ast.ClassDef) and "Protocol" in ast.dump(node)]
    return {name for node in protocols for name, told in functions(node.body) if told}


def functions(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            overload = any("overload" in ast.dump(decorator) for decorator in node.decorator_list)
            if not overload:
                yield node.name, ast.get_docstring(node) is not None


PORT = promised(ast.parse((PACKAGE / "store.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body, "a module opens with one sentence"
    # The contract's suites are tests, whose names say what they say.
    suite = path.parent.name == "contract" and path.name != "harness.py"
    # A method that implements a protocol is described there, and a function of a store that implements a verb too.
    known = promised(tree) | PORT if "stores" in path.parts else promised(tree)
    missing = [name for name, told in described(tree, methods=not suite) if not told]
    assert [name for name in missing if name.rpartition(".")[2] not in known] == []


def test_it_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
