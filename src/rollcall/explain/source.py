"""How two lines of a program relate to each other: one after the other, or in branches that exclude each other.

Ranks run the same source. If two of them are in different calls, the innermost function that both are in shows why: one
rank has skipped the other's line, or took another branch.
"""

import ast
import functools
import linecache
from dataclasses import dataclass
from typing import Literal

from rollcall.explain.loading.table import Site

Relation = Literal["after", "before", "exclusive", "same", "unknown"]


@dataclass(frozen=True)
class Divergence:
    """The innermost function that two ranks are both in, and the line of each there."""

    file: str
    mine: int
    theirs: int


def divergence_of(mine: Site, theirs: Site) -> Divergence | None:
    """Where two ranks went different ways; None if no function is on both stacks."""
    ours, others = list(reversed(mine.chain)), list(reversed(theirs.chain))
    found = None
    for a, b in zip(ours, others, strict=False):
        if (a.file, a.function) != (b.file, b.function):
            break
        found = Divergence(a.file, a.line, b.line)
        if a.line != b.line:
            break
    return found


def diverging_lines(mine: Site, theirs: Site) -> tuple[Site, ...]:
    """The two lines at which they went different ways, if these are not the lines of the ops themselves."""
    divergence = divergence_of(mine, theirs)
    if divergence is None or divergence.mine == divergence.theirs:
        return ()
    lines = {(site.file, site.line): site for site in (*mine.callers, *theirs.callers)}
    return tuple(
        lines[divergence.file, line]
        for line in (divergence.mine, divergence.theirs)
        if (divergence.file, line) in lines
    )


def relation(divergence: Divergence) -> Relation:
    """How my line relates to theirs."""
    if divergence.mine == divergence.theirs:
        return "same"
    tree = _parse(divergence.file)
    if tree is None:
        return "unknown"
    mine, theirs = _path_to(tree, divergence.mine), _path_to(tree, divergence.theirs)
    for (node, branch), (other, other_branch) in zip(mine, theirs, strict=False):
        if node is not other:
            break
        if branch != other_branch:
            return "exclusive"
    if _leaves(mine, divergence.theirs) or _leaves(theirs, divergence.mine):
        return "exclusive"
    return "after" if divergence.mine > divergence.theirs else "before"


def _leaves(path: list[tuple[ast.AST, str]], other: int) -> bool:
    """Whether a branch on this path leaves the function or the loop before the other line is reached."""
    for node, branch in path:
        if isinstance(node, ast.If) and _end(node) < other:
            block = [child for name, child in _children(node) if name == branch]
            if isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                return True
    return False


def is_choice_of_loop(divergence: Divergence) -> bool:
    """Whether the variable of a loop, and nothing else, decides between the two lines: then each comes in its turn.
    Where something else takes part, such as the rank, ranks go different ways in the same turn."""
    tree = _parse(divergence.file)
    if tree is None:
        return False
    turns: set[str] = set()
    for (node, branch), (other, other_branch) in zip(
        _path_to(tree, divergence.mine), _path_to(tree, divergence.theirs), strict=False
    ):
        if node is not other:
            break
        if branch != other_branch:
            deciding = {n.id for n in _names_in(node.test)} if isinstance(node, ast.If) else set()
            return bool(deciding) and deciding <= turns
        if isinstance(node, ast.For):
            turns |= {n.id for n in _names_in(node.target)}
    return False


def is_turn_of_loop(mine: Site, theirs: Site) -> bool:
    """Whether both came through a line of a loop that uses the variable of the loop: then the order of the loop decides
    which call comes first."""
    for own, other in zip(reversed(mine.chain), reversed(theirs.chain), strict=False):
        if (own.file, own.function, own.line) != (other.file, other.function, other.line):
            return False
        tree = _parse(own.file)
        path = _path_to(tree, own.line) if tree else []
        loops = [node for node, _ in path if isinstance(node, ast.For) and not _is_counted(node)]
        turns = {n.id for node in loops for n in _names_in(node.target)}
        used = {n.id for node in _block_of(path) if node.lineno <= own.line <= _end(node) for n in _names_in(node)}
        if turns & used:
            return True
    return False


def _is_counted(loop: ast.For) -> bool:
    """`for i in range(n)`: its turns come in the same order on all ranks."""
    return isinstance(loop.iter, ast.Call) and getattr(loop.iter.func, "id", "") == "range"


def _names_in(node: ast.AST) -> list[ast.Name]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def calls_later(file: str, line: int, other: int) -> bool:
    """Whether the block of `line` later calls something that `other` calls, too."""
    tree = _parse(file)
    if tree is None:
        return False
    wanted = _called(tree, other, other)
    path = _path_to(tree, line)
    block = _block_of(path)
    later = [node for node in block if node.lineno > line]
    return any(_names(node) & wanted for node in later)


def is_past(mine: Site, theirs: Site) -> bool:
    """Whether a rank at my line has passed theirs: it comes later in the innermost function that both are in, or in
    another branch that does not come to such a call itself, and no loop leads back to it."""
    divergence = divergence_of(mine, theirs)
    tree = _parse(divergence.file) if divergence else None
    if divergence is None or tree is None or relation(divergence) not in ("after", "exclusive"):
        return False
    if relation(divergence) == "exclusive" and _comes_to_its_own(divergence, tree):
        return False
    return not _is_looping(mine, divergence, tree)


def _comes_to_its_own(divergence: Divergence, tree: ast.Module) -> bool:
    """Whether my branch later calls what the other line calls, as `if rank == 0: load(); barrier()` and `else:
    wait_for_file(); barrier()` do."""
    wanted = _called(tree, divergence.theirs, divergence.theirs)
    around = {(id(node), branch) for node, branch in _path_to(tree, divergence.theirs)}
    mine = [step for step in _path_to(tree, divergence.mine) if (id(step[0]), step[1]) not in around]
    later = [child for step in mine for child in _block_of([step]) if child.lineno > divergence.mine]
    return any(_names(child) & wanted for child in later)


def _frame(site: Site, divergence: Divergence) -> Site:
    return next(each for each in site.chain if (each.file, each.line) == (divergence.file, divergence.mine))


def is_outside_loop(mine: Site, inner: Site) -> bool:
    """Whether my line is outside the innermost loop around the other line, in whatever function that loop is. False if
    that is not known."""
    for frame in inner.chain:
        tree = _parse(frame.file)
        loops = _loops_around(tree, frame.line) if tree else []
        if loops:
            begin, end = loops[-1].lineno, _end(loops[-1])
            return not any(
                (each.file, each.function) == (frame.file, frame.function) and begin <= each.line <= end
                for each in mine.chain
            )
    return False


def is_chosen_in_loop(mine: Site, theirs: Site) -> bool:
    """Whether an `if` decides on my line that does not decide on theirs, in the innermost function that both are in, or
    one that asks for the rank, in a function that only I am in; and a loop leads from there back to theirs: a rank that
    is there may have passed my line."""
    divergence = divergence_of(mine, theirs)
    tree = _parse(divergence.file) if divergence else None
    if divergence is None or tree is None:
        return False
    around = {id(node) for node, _ in _path_to(tree, divergence.theirs)}
    is_chosen = any(isinstance(node, ast.If) and id(node) not in around for node, _ in _path_to(tree, divergence.mine))
    own = mine.chain[: mine.chain.index(_frame(mine, divergence))]
    return (is_chosen or any(map(_is_for_some_ranks, own))) and _is_looping(mine, divergence, tree)


def _is_for_some_ranks(frame: Site) -> bool:
    """Whether its function comes to this line on some ranks only: an `if` around it asks for the rank, or one before it
    that returns. Other conditions of a helper, such as `if world_size > 1`, hold on all ranks alike."""
    tree = _parse(frame.file)
    path = _path_to(tree, frame.line) if tree else []
    inner = max((place for place, (node, _) in enumerate(path) if isinstance(node, ast.FunctionDef)), default=0)
    around = [node for node, _ in path[inner:]]
    before = [node for step in path[inner:] for node in _block_of([step]) if _end(node) < frame.line]
    conditions = [*around, *filter(_is_guard, before)]
    return any(_asks_for_rank(node.test) for node in conditions if isinstance(node, ast.If))


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Continue)


def _asks_for_rank(test: ast.expr) -> bool:
    """`rank == 0`, `dist.get_rank() == 0`, `self.is_main_process`."""
    names = [getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(test)]
    return any(_RANK_WORDS.intersection(name.lower().split("_")) for name in names)


_RANK_WORDS = {"rank", "main", "master", "chief", "leader", "zero"}


def _is_looping(mine: Site, divergence: Divergence, tree: ast.Module) -> bool:
    """Whether a loop is around both lines, or around a call of the function that they are in."""
    both = {id(node) for node in _loops_around(tree, divergence.mine)}
    if any(id(node) in both for node in _loops_around(tree, divergence.theirs)):
        return True
    outer = mine.chain[mine.chain.index(_frame(mine, divergence)) + 1 :]
    return any(_loops_around(parsed, site.line) for site in outer if (parsed := _parse(site.file)))


def is_outside_loops(mine: Site, inner: Site) -> bool:
    """Whether my line is outside all loops around the other line, in whatever functions they are."""
    mine_in = {(each.file, each.function): each.line for each in mine.chain}
    for frame in inner.chain:
        line, tree = mine_in.get((frame.file, frame.function)), _parse(frame.file)
        loops = _loops_around(tree, frame.line) if tree and line is not None else []
        if line is not None and any(loop.lineno <= line <= _end(loop) for loop in loops):
            return False
    return True


def ways_out_of_loop(mine: Site | None, inner: Site | None) -> tuple[Site, ...]:
    """Where a rank may have left the loops that the other line is in, in whatever functions, and that it is past: the
    breaks and returns of the innermost of them that has any."""
    if mine is None or inner is None or not is_outside_loop(mine, inner):
        return ()
    for frame in inner.chain:
        tree = _parse(frame.file)
        loops = _loops_around(tree, frame.line) if tree else []
        inside = [site.line for site in mine.chain if (site.file, site.function) == (frame.file, frame.function)]
        left = [loop for loop in reversed(loops) if not any(loop.lineno <= line <= _end(loop) for line in inside)]
        for loop in left:
            if exits := sorted(_exits(loop))[:_FEW]:
                return tuple(Site(frame.file, line, frame.function) for line in exits)
        if len(left) < len(loops):
            return ()
    return ()


def _exits(node: ast.AST) -> set[int]:
    """The lines below a loop that leave it: breaks that belong to it, not to a loop inside, and returns."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Break | ast.Return):
            found.add(child.lineno)
        elif isinstance(child, ast.For | ast.AsyncFor | ast.While):
            found |= {each.lineno for each in ast.walk(child) if isinstance(each, ast.Return)}
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            found |= _exits(child)
    return found


def is_fetched_each_time(site: Site) -> bool:
    """Whether a line takes something in every turn of a loop, and keeps it: not under a condition, not for the sake of
    waiting. True if that is not known."""
    for number, frame in enumerate(site.chain):
        tree = _parse(frame.file)
        if tree is None:
            return True
        path = _path_to(tree, frame.line)
        statement = next((each for each in _block_of(path) if each.lineno <= frame.line <= _end(each)), None)
        if number == 0 and isinstance(statement, ast.Expr):
            return False
        for node, branch in reversed(path):
            if isinstance(node, ast.For | ast.AsyncFor | ast.While) and branch == "body":
                return True
            if isinstance(node, ast.If) or branch.startswith(("handler", "case")):
                return False
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                break
    return False


def text_of(site: Site) -> str:
    """What stands on a line; empty if that is not known."""
    return linecache.getline(site.file, site.line).strip()


def takes_from_queue(site: Site) -> bool:
    return ".get(" in linecache.getline(site.file, site.line)


def _loops_around(tree: ast.AST, line: int) -> list[ast.stmt]:
    """The loops of the same function around a line, the outermost first."""
    found: list[ast.stmt] = []
    for node, _ in _path_to(tree, line):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = []
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            found.append(node)
    return found


def ways_out(mine: Site | None, theirs: Site | None) -> tuple[Site, ...]:
    """Where a rank may have left a function that the others are still in: its returns and breaks before the end, of the
    innermost such function that has any."""
    for own in mine.chain if mine else ():
        if not any(
            (own.file, own.function) == (other.file, other.function) for other in (theirs.chain if theirs else ())
        ):
            continue
        tree = _parse(own.file)
        scopes = [node for node, _ in _path_to(tree, own.line) if isinstance(node, ast.FunctionDef)] if tree else []
        found = [node for node in ast.walk(scopes[-1]) if isinstance(node, ast.Return | ast.Break)] if scopes else []
        early = sorted(node.lineno for node in found if node is not scopes[-1].body[-1])
        if early:
            return tuple(Site(own.file, line, own.function) for line in early[:_FEW])
    return ()


_FEW = 2  # ways out: more of them tell nothing about which was taken


def _parse(file: str) -> ast.Module | None:
    return _parse_text("".join(linecache.getlines(file)))


@functools.cache
def _parse_text(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None


def _path_to(tree: ast.AST, line: int) -> list[tuple[ast.AST, str]]:
    """From the module down to the statement at a line: each node, and the branch of it that is taken."""
    path: list[tuple[ast.AST, str]] = []
    node: ast.AST | None = tree
    while node is not None:
        step = next(((name, child) for name, child in _children(node) if child.lineno <= line <= _end(child)), None)
        if step is None:
            break
        path.append((node, step[0]))
        node = step[1]
    return path


def _children(node: ast.AST) -> list[tuple[str, ast.stmt]]:
    found = []
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            found += [(name, child) for child in block if isinstance(child, ast.stmt)]
    for number, handler in enumerate(getattr(node, "handlers", [])):
        found += [(f"handler {number}", child) for child in handler.body]
    for number, case in enumerate(getattr(node, "cases", [])):
        found += [(f"case {number}", child) for child in case.body]
    return found


def _block_of(path: list[tuple[ast.AST, str]]) -> list[ast.stmt]:
    if not path:
        return []
    node, branch = path[-1]
    return [child for name, child in _children(node) if name == branch]


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _called(tree: ast.AST, first: int, last: int) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and first <= node.lineno <= last
        for name in _names(node)
    }


def _names(node: ast.AST) -> set[str]:
    """The names of what is called below a node, without those that every program calls."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            target = each.func
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            names.add(name)
    return names - {"", "print", "tensor", "item", "get_rank", "get_world_size", "tolist", "format", "append"}
