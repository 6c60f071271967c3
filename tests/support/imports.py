"""What modules of the package import, read from their source, imports inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "estimator_utils"
NAME = PACKAGE.name


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(module: str, lazy: bool = True) -> set[str]:
    """Return the dotted names that a module imports; those inside functions too where ``lazy``.

    ``from a import b`` gives ``a.b`` where that is a module of the package, and ``a`` otherwise. Blocks under
    ``if TYPE_CHECKING`` do not run and are left out.
    """
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        only_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if only_for_types or (not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in MODULES else base)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def reached(module: str, lazy: bool = True) -> set[str]:
    """Return all that a module imports, and what the package's modules among those import in turn."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in MODULES:
            waiting += imported(current, lazy)
            waiting += [current.rpartition(".")[0]] if "." in current else []  # a package runs before its modules
    return seen - {module}
