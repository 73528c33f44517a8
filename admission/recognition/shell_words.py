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
from itertools import islice
from typing import Final

END: Final = ";"  # stands between two commands of a script, so that no flag takes a value from the next one

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SHELL_COMMAND_FLAG = re.compile(r"-[a-z]*c[a-z]*")
_OPTIONS_WITH_A_FILE: Final = frozenset({"--rcfile", "--init-file"})
_SCRIPT_WORD = re.compile(
    r"""
      (?<!\S)\#[^\n]*                                        # a comment, to the end of its line
    | [;&|\n]++                                              # the end of a command
    | (?: [^\s"'\\;&|]++ | "(?:[^"\\]|\\.)*+" | '[^']*+' | \\. )++
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,  # a shell does not end a word at a no-break space
)
_PLAIN_WORD = re.compile(r"[^\s\"'\\$#;&|]+", re.ASCII)
_WORD_PART = re.compile(r'"((?:[^"\\]|\\.)*+)"|\'([^\']*+)\'|\\(.)|([^"\'\\]++)', re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|[1-9])|\{([A-Za-z_]\w*|[1-9])(?::?-([^{}$`]*))?\})", re.ASCII)
_BARE_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)
_KUBELET_VARIABLE = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)", re.ASCII)
_ASSIGNMENT = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)(\+?)=", re.ASCII)
_VALUE = re.compile(r"""(?:[^\s"'\\;&|()]++|"(?:[^"\\]|\\.)*+"|'[^']*+'|\\.)*+(?=[\s;&|]|$)""", re.DOTALL | re.ASCII)
_CONDITION = re.compile(r"\b(?:if|case|while|until|for|function)\b|&&|\|\||\(\)")
_ARRAY: Final = re.compile(r"[A-Za-z_]\w*\+?=\(", re.ASCII)  # ARGS=( and ARGS+=( of bash: words of a command to come
_OTHER_PARAMETERS = re.compile(r"\(\s*\)|\b(?:function|set|shift)\b")  # `$1` may be another one by then
_MAX_DEFAULTS: Final = 256
_NEVER: Final = 1 << 30  # added to a count: this variable is never certain again
_MAX_ASSIGNMENTS: Final = 1024
_MAX_CHARS_PUT_IN: Final = 256 * 1024  # into all words of a script
_MAX_CHARS_IN_A_WORD: Final = 64 * 1024


def expanded(word: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet puts it in before anything starts."""
    if "$(" not in word:
        return word
    left = _MAX_CHARS_IN_A_WORD

    def value(match: re.Match[str]) -> str:
        nonlocal left
        text = env.get(match[1]) or match[0]
        left -= len(text)
        return text if left >= 0 else match[0]

    return _KUBELET_VARIABLE.sub(value, word)


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


def script_words(script: str, env: Mapping[str, str], complete: bool, parameters: Sequence[str] = ()) -> Iterator[str]:
    """The words of a script, quotes taken off, END between commands.

    `complete`: `env` names every variable that the container starts with, so that defaults can be believed.
    `parameters`: what the shell was given as `$1` and so on.
    """
    script = script.replace("\\\n", " ")
    known, unsure = _variables(script, env)
    if parameters and not _OTHER_PARAMETERS.search(script):
        known = {**known, **{str(at): value for at, value in enumerate(parameters[:9], start=1)}}
    defaults, left = complete, _MAX_CHARS_PUT_IN
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
            left -= len(text)
            if left < 0:
                return  # one long value, put in a thousand times
            if " " in text and _BARE_VARIABLE.fullmatch(word):
                yield from (_unquoted(part[0], {}, unsure, False) for part in _SCRIPT_WORD.finditer(text))
            else:
                yield text
        if closed:
            yield END


def _variables(script: str, env: Mapping[str, str]) -> tuple[Mapping[str, str], frozenset[str]]:
    """Variables with a certain value, and those that have one which cannot be told."""
    if "$" not in script:
        return {}, frozenset()
    first = _CONDITION.search(script)
    certain_until = first.start() if first else len(script)
    assigned = Counter[str]()
    known = {name: value for name, value in env.items() if value}
    for match in islice(_ASSIGNMENT.finditer(script), _MAX_ASSIGNMENTS):
        name, more = match[1], bool(match[2])
        if not assigned[name]:
            known.pop(name, None)
        assigned[name] += 1
        if match.start() >= certain_until:
            known.pop(name, None)
            assigned[name] += _NEVER
            continue
        given = _VALUE.match(script, match.end())
        raw = given[0] if given else "$"
        more |= any(name in (used[1], used[2]) for used in _SHELL_VARIABLE.finditer(raw))
        value = (known.get(name, "") if match[2] else "") + _unquoted(raw, known, frozenset(), defaults=False)
        # `NAME=a` once, and then only `NAME+=b` or `NAME="$NAME b"`: everything else may be undone or done twice
        if "$" in value or "`" in value or more != (assigned[name] > 1) or (more and name not in known):
            known.pop(name, None)
            assigned[name] += _NEVER
        else:
            known[name] = value
    if assigned.total() % _NEVER >= _MAX_ASSIGNMENTS:
        known = {}  # who knows what the rest does
    return known, frozenset(name for name in (*assigned, *env) if name not in known)


def _unquoted(word: str, known: Mapping[str, str], unsure: frozenset[str], defaults: bool) -> str:
    left = _MAX_CHARS_IN_A_WORD

    def value(match: re.Match[str]) -> str:
        nonlocal left
        name, default = match[1] or match[2], match[3]
        text = match[0]
        if name in known:
            text = known[name] or (default or "")
        elif default is not None and defaults and name not in unsure and len(default) <= _MAX_DEFAULTS:
            text = default
        left -= len(text)
        return text if left >= 0 else match[0]

    def put_in(text: str) -> str:
        return _SHELL_VARIABLE.sub(value, text) if "$" in text else text

    parts = []
    for double, single, escaped, bare in _WORD_PART.findall(word):
        parts.append(put_in(_ESCAPED_IN_QUOTES.sub(r"\1", double)) or single or escaped or put_in(bare))
    return "".join(parts)
