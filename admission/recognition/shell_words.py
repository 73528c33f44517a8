"""How a container's words and its shell script are cut, and which variables in them are known.

Only what Kubernetes itself and a POSIX shell would do before a program starts: `$(NAME)` of the kubelet, quotes,
comments, line continuations, `;` `&` `|`, and variables whose value is certain. Certain is a value from the pod's own
env, a default where nothing else can set the variable, or the one unconditional assignment in the script. A variable
that is not certain stays as it is written: better unknown than wrong. Never raises, and no expression backtracks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

END: Final = ";"  # stands between two commands of a script, so that no flag takes a value from the next one

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SHELL_COMMAND_FLAG = re.compile(r"-[a-z]*c")
_SCRIPT_WORD = re.compile(
    r"""
      (?<!\S)\#[^\n]*                                        # a comment, to the end of its line
    | [;&|\n]++                                              # the end of a command
    | (?: [^\s"'\\;&|]++ | "(?:[^"\\]|\\.)*+" | '[^']*+' | \\. )++
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_WORD = re.compile(r"[^\s\"'\\$#;&|]+")
_WORD_PART = re.compile(r'"((?:[^"\\]|\\.)*+)"|\'([^\']*+)\'|\\(.)|([^"\'\\]++)', re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}$`]*))?\})", re.ASCII)
_BARE_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)
_KUBELET_VARIABLE = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)", re.ASCII)
_ASSIGNMENT = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=", re.ASCII)
_LITERAL = re.compile(r'"([^"\\$`]*)"(?=[\s;&|]|$)|\'([^\']*)\'(?=[\s;&|]|$)|([^\s"\'\\;&|$`()]*)(?=[\s;&|]|$)')
_CONDITION = re.compile(r"\b(?:if|case|while|until|for|function)\b|&&|\|\||\(\)")
_ARRAY: Final = re.compile(r"[A-Za-z_]\w*\+?=\(", re.ASCII)  # ARGS=( and ARGS+=( of bash: words of a command to come
_MAX_DEFAULTS: Final = 256


def expanded(word: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet puts it in before anything starts."""
    if "$(" not in word:
        return word
    return _KUBELET_VARIABLE.sub(lambda match: env.get(match[1]) or match[0], word)


def script_position(argv: Sequence[str]) -> int:
    """Which element is a script: the one after `sh -c`, or a lone string that holds a whole command line; else -1."""
    for position, word in enumerate(argv[:-1]):
        shell = argv[position - 1].rpartition("/")[2] if position else "sh"  # position 0: the image's entry point
        if shell in _SHELLS and _SHELL_COMMAND_FLAG.fullmatch(word):
            return position + 1
    return 0 if len(argv) == 1 and " --" in argv[0] else -1


def script_words(script: str, env: Mapping[str, str], complete: bool) -> Iterator[str]:
    """The words of a script, quotes taken off, END between commands.

    `complete`: `env` names every variable that the container starts with, so that defaults can be believed.
    """
    script = script.replace("\\\n", " ")
    known, unsure = _variables(script, env)
    defaults = complete
    in_array = False
    for match in _SCRIPT_WORD.finditer(script):
        word = match[0]
        opened = _ARRAY.match(word)
        if opened:
            in_array, word = True, word[opened.end() :]
            yield END
        if in_array and word == "\n" * len(word):
            continue
        closed = in_array and word[-1] == ")"  # in quotes it would not be the last character
        if closed:
            in_array, word = False, word[:-1]
        if not word:
            pass
        elif _PLAIN_WORD.fullmatch(word):
            yield word
        elif word[0] == "#":
            continue
        elif word[0] in ";&|\n":
            yield END
        else:
            text = _unquoted(word, known, unsure, defaults)
            if " " in text and _BARE_VARIABLE.fullmatch(word):
                yield from (_unquoted(part[0], {}, unsure, False) for part in _SCRIPT_WORD.finditer(text))
            else:
                yield text
        if closed:
            yield END


def _variables(script: str, env: Mapping[str, str]) -> tuple[Mapping[str, str], frozenset[str]]:
    """Variables with a certain value, and those that have one which cannot be told."""
    assigned = Counter(match[1] for match in _ASSIGNMENT.finditer(script))
    if not assigned:
        return {name: value for name, value in env.items() if value}, frozenset(k for k, v in env.items() if not v)
    known = {name: value for name, value in env.items() if value and name not in assigned}
    first = _CONDITION.search(script)
    certain_until = first.start() if first else len(script)
    for match in _ASSIGNMENT.finditer(script, 0, certain_until):
        literal = _LITERAL.match(script, match.end()) if assigned[match[1]] == 1 else None
        if literal:
            known[match[1]] = literal[1] or literal[2] or literal[3] or ""
    return known, frozenset(name for name in (*assigned, *env) if name not in known)


def _unquoted(word: str, known: Mapping[str, str], unsure: frozenset[str], defaults: bool) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name in known:
            return known[name] or (default or "")
        if default is not None and defaults and name not in unsure and len(default) <= _MAX_DEFAULTS:
            return default
        return match[0]

    def put_in(text: str) -> str:
        return _SHELL_VARIABLE.sub(value, text) if "$" in text else text

    parts = []
    for double, single, escaped, bare in _WORD_PART.findall(word):
        parts.append(put_in(_ESCAPED_IN_QUOTES.sub(r"\1", double)) or single or escaped or put_in(bare))
    return "".join(parts)
