"""The commands of a container's start script, as the grammar of bash cuts them, and which variables in them are known.

Only what Kubernetes and a shell do before a program starts: `$(NAME)` of the kubelet, quotes, and variables whose value
is certain: from the pod's own env, a default where nothing else can set the variable, or the one unconditional
assignment in the script. Others stay as they are written: better unknown than wrong. Never raises.

The grammar is tree-sitter-bash. It reads any text, but one that is broken may cost it the square of its pieces, and
whoever may create a pod writes the text. So a script beyond the limits is not read. The longest of the public manifests
has 1,125 bytes and 214 pieces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_BASH: Final = Language(tree_sitter_bash.language())
_MAX_BYTES: Final = 8 * 1024
_MAX_PIECES: Final = 768
_PIECE: Final = re.compile(r"[\w./:@%,=+-]+|[^ \t]")  # not less than the tokens that the grammar can see
_PIECES_A_SCRIPT: Final = 16  # the least that one costs, so that shells within shells end

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SHELL_COMMAND_FLAG: Final = re.compile(r"-[a-z]*c[a-z]*")
_OPTIONS_WITH_A_FILE: Final = frozenset({"--rcfile", "--init-file"})
_KUBELET_VARIABLE: Final = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)", re.ASCII)
_VARIABLE: Final = r"\$(?:([A-Za-z_]\w*|[1-9])|\{([A-Za-z_]\w*|[1-9])(?::?-([^{}$`]*))?\})"
_BARE: Final = re.compile(rf"\\(.)|{_VARIABLE}", re.ASCII | re.DOTALL)
_QUOTED: Final = re.compile(rf'\\(["\\$`])|{_VARIABLE}', re.ASCII | re.DOTALL)
_OTHER_PARAMETERS: Final = re.compile(r"\(\s*\)|\b(?:function|set|shift)\b")  # `$1` may be another one by then

_COMMANDS: Final = frozenset({"command", "declaration_command", "unset_command", "variable_assignment"})
_EXPANSIONS: Final = frozenset({"simple_expansion", "expansion"})
_TOKENS: Final = _EXPANSIONS | {"word", "number", "string", "raw_string", "concatenation", "command_substitution"}
_CONDITIONS: Final = frozenset(
    {"if_statement", "case_statement", "while_statement", "for_statement", "c_style_for_statement"}
    | {"function_definition", "&&", "||"}
)


@dataclass(slots=True)
class Allowance:
    """What the scripts of one pod may still cost. `chars` are of the values that stand in place of variables."""

    pieces: int = 2 * _MAX_PIECES
    chars: int = 128 * 1024

    def put_in(self, value: str, written: str) -> str:
        """`value`, or what is written there once all is spent."""
        self.chars -= len(value)
        return value if self.chars >= 0 else written


def expanded(word: str, env: Mapping[str, str], allowance: Allowance) -> str:
    """`$(NAME)` as the kubelet puts it in before anything starts."""
    if "$(" not in word:
        return word
    return _KUBELET_VARIABLE.sub(lambda match: allowance.put_in(env.get(match[1]) or match[0], match[0]), word)


def script_position(argv: Sequence[str]) -> int:
    """Which element is a script: the command string of `sh -c`, or a lone string that holds a command line; -1: none.

    A shell takes the first word behind its options, as `bash -euo pipefail -c -- SCRIPT` shows (POSIX sh, OPTIONS).
    """
    if len(argv) == 1:
        return 0 if " --" in argv[0] else -1
    for position, word in enumerate(argv):
        # position 0 may be an option too: the image's entry point is the shell
        if word.rpartition("/")[2] in _SHELLS or (position == 0 and _SHELL_COMMAND_FLAG.fullmatch(word)):
            found = _command_string(argv, position + (word[:1] != "-"))
            if found >= 0:
                return found
    return -1


def _command_string(argv: Sequence[str], position: int) -> int:
    """The first word behind a shell's options, if `-c` is one of them; else -1."""
    asked = False
    while position < len(argv):
        word = argv[position]
        if word[:1] not in ("-", "+") or word in ("-", "--"):
            position += word in ("-", "--")
            return position if asked and position < len(argv) else -1
        if word in _OPTIONS_WITH_A_FILE:
            position += 1
        elif word[:2] != "--":
            asked = asked or (word[0] == "-" and "c" in word)
            position += word[-1] in "oO"  # the next word is the option's name
        position += 1
    return -1


def script_commands(
    script: str, env: Mapping[str, str], complete: bool, parameters: Sequence[str], allowance: Allowance
) -> list[list[str]] | None:
    """The commands of a script in their order, each a list of words without quotes; None: it is beyond the limits.

    Elements of a bash array are a command, a here-document is a script of a shell. `complete`: `env` names every
    variable that the container starts with, so that defaults can be believed. `parameters`: `$1` and so on.
    """
    text = script.replace("\\\n", " ").encode(errors="replace")
    if len(text) > _MAX_BYTES:
        return None
    pieces = _PIECES_A_SCRIPT + len(_PIECE.findall(script))
    if pieces > min(_MAX_PIECES, allowance.pieces):
        return None
    allowance.pieces -= pieces
    commands, assignments = _parts(Parser(_BASH).parse(text).root_node)
    variables = _Variables(env, {name: value for name, value in env.items() if value}, allowance)
    for node, certain in assignments:
        variables.assign(node, certain)
    variables.defaults = complete
    if parameters and not _OTHER_PARAMETERS.search(script):
        variables.known |= {str(at): value for at, value in enumerate(parameters[:9], start=1)}
    return [tokens for command in commands if (tokens := [word for node in command for word in variables.tokens(node)])]


def _parts(root: Node) -> tuple[list[list[Node]], list[tuple[Node, bool]]]:
    """The words of each command, and the assignments; whether nothing decides if they are made."""
    commands: list[list[Node]] = []
    assignments: list[tuple[Node, bool]] = []
    certain, stack = True, [root]
    while stack:
        node = stack.pop()
        certain = certain and node.type not in _CONDITIONS
        if node.type in _COMMANDS:
            tokens = [node] if node.type == "variable_assignment" else list(_tokens_of(node))
            arrays = [elements for word in tokens if (elements := _elements(word)) is not None]
            commands += [[word for word in tokens if _elements(word) is None], *arrays]
            assignments += [(word, certain) for word in tokens if word.type == "variable_assignment"]
        elif node.type == "heredoc_body":
            commands.append([node])
        elif node.type == "file_redirect":
            if commands:
                commands[-1] += node.children_by_field_name("destination")[1:]  # they are words of the command
        else:
            if node.type == "ERROR":
                commands.append(list(_tokens_of(node)))
            stack.extend(reversed(node.children))
    return commands, assignments


def _elements(assignment: Node) -> list[Node] | None:
    """Of the bash array that is assigned, if it is one."""
    value = assignment.child_by_field_name("value")
    return value.named_children if value and value.type == "array" else None


def _tokens_of(command: Node) -> Iterator[Node]:
    """Of what is broken, only what is a word for certain."""
    for child in command.children:
        if child.type in ("command_name", "ERROR"):
            yield from _tokens_of(child)
        elif child.type in _TOKENS or (command.type != "ERROR" and not child.type.endswith("_redirect")):
            yield child


@dataclass(slots=True)
class _Variables:
    """`known` have one value for certain; others of `env` or `assigned` have one that cannot be told."""

    env: Mapping[str, str]
    known: dict[str, str]
    allowance: Allowance
    defaults: bool = False  # can be believed
    assigned: Counter[str] = field(default_factory=Counter)

    def assign(self, node: Node, certain: bool) -> None:
        """`NAME=a` once, and then only `NAME+=b` or `NAME="$NAME b"`: everything else may be undone or done twice."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = _written(name_node) if name_node else ""
        if not self.assigned[name]:
            self.known.pop(name, None)
        self.assigned[name] += 1
        appends = any(child.type == "+=" for child in node.children)
        value = (self.known.get(name, "") if appends else "") + (self.text(value_node) if value_node else "")
        more = appends or any(name in (used[2], used[3]) for used in _BARE.finditer(_written(node)))
        again = self.assigned[name] > 1
        open_value = _elements(node) is not None or "$" in value or "`" in value
        if open_value or not certain or more != again or (more and name not in self.known):
            self.known.pop(name, None)
            self.assigned[name] = 2  # so it is never certain again
        else:
            self.known[name] = value

    def tokens(self, node: Node) -> list[str]:
        """What one word of a command comes to: a bare variable may be several."""
        if node.type == "comment":
            return []
        if node.type == "heredoc_body":
            return ["sh", "-c", _QUOTED.sub(self._value, _written(node))]
        text = self.text(node)
        if node.type not in _EXPANSIONS or " " not in text:
            return [text]
        commands = script_commands(text, {}, False, (), self.allowance)
        return [_written(node)] if commands is None else [word for command in commands for word in command]

    def text(self, node: Node) -> str:
        """One word without its quotes, known variables put in."""
        if node.type == "raw_string":
            return _written(node)[1:-1]
        if node.type == "string":
            return _QUOTED.sub(self._value, _written(node)[1:-1])
        if node.type in ("concatenation", "variable_assignment"):
            return "".join(map(self.text, node.children))
        return _BARE.sub(self._value, _written(node))

    def _value(self, match: re.Match[str]) -> str:
        escaped, name, default = match[1], match[2] or match[3], match[4]
        if escaped is not None:
            return escaped
        if name in self.known:
            return self.allowance.put_in(self.known[name] or default or "", match[0])
        if default is not None and self.defaults and name not in self.assigned and name not in self.env:
            return default
        return match[0]


def _written(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
