"""`bridle`: finds the verb, imports only that one, and shows what went wrong in one line."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any, NoReturn

import click

from bridle import __version__
from bridle.errors import BridleError, ConfigError, InfrastructureError
from bridle.registry import unknown

VERBS = {
    "run": "Run tasks with an agent and write graded samples.",
    "show": "Show what a run left.",
    "view": "Show what was captured on one page, or in a picture.",
    "export": "Write a run's samples to one file.",
    "linearize": "Turn a session log or a case file into samples.",
    "check": "Check a run's samples against its engine's journal.",
    "verify": "Prove a model faithful, or show where it is not.",
    "audit": "Recompute the logprobs of a run's samples with the same weights.",
    "doctor": "Check this machine, or play real agents through scenarios.",
    "serve": "Serve a part of Bridle over HTTP.",
}


class Verbs(click.Group):
    """Imports a verb's module when it is called, so that `bridle linearize` does not pay for a server."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"bridle.cli.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words and words[0] not in VERBS and not words[0].startswith("-"):
            raise ConfigError(unknown("verb", words[0], VERBS))
        return super().resolve_command(context, words)

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        """Every error is one message and an exit code: 1 for what failed, 2 for what was given, 130 for Ctrl-C."""
        try:
            code = super().main(*arguments, **{**options, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            code = _told(" ".join(error.format_message().split()), error.exit_code)
        except click.Abort:
            code = _told("interrupted", 130)
        except BridleError as error:
            code = _told(error.message, 1 if isinstance(error, InfrastructureError) else 2)
        sys.exit(code)


def _told(message: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return code


@click.command(cls=Verbs)
@click.version_option(__version__, prog_name="bridle")
@click.option("-v", "--verbose", is_flag=True, help="Log what the parts do.")
def main(verbose: bool) -> None:
    """Turn any coding agent, unmodified, into an RL environment."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
