"""`kernel-gateway completion`: print a script with which a shell completes commands and flags."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples

BASH = """\
_kernel_gateway() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    case "${{COMP_WORDS[1]}}" in
{cases}
        *) words="{commands}" ;;
    esac
    [ "$COMP_CWORD" -eq 1 ] && words="{commands}"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _kernel_gateway kernel-gateway
"""
#: what makes each shell read the script: zsh has Bash's way built in
SHELLS = {"bash": BASH, "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{BASH}"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")
    add_examples(parser, "kernel-gateway completion bash > ~/.local/share/bash-completion/completions/kernel-gateway")


def main(arguments: argparse.Namespace) -> int:
    """Print the script.

    Returns:
        0.
    """
    from kernel_gateway.cli import COMMANDS, parser  # noqa: PLC0415 - it has imported this module

    cases = []
    for name in COMMANDS:
        [commands] = [each for each in parser(name)._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no other way
        cases.append(f'        {name}) words="{" ".join(words_of(commands.choices[name]))}" ;;')
    print(SHELLS[arguments.shell].format(cases="\n".join(cases), commands=" ".join(COMMANDS)), end="")
    return 0


def words_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags and actions of a command, and the flags of its actions."""
    found: dict[str, None] = {}
    for action in parser._actions:  # noqa: SLF001 - as above
        found |= dict.fromkeys(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for name, each in action.choices.items():
                found |= dict.fromkeys([name, *words_of(each)])
    return [*found]
