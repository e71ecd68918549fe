"""The `mansard` command: a table of subcommands, each imported only when it is called.

Importing one command must not pay for the others (the server alone needs half a second of imports), so the
help screen is drawn from the table and only the command that was named is loaded. To add a command, write a
function with typer's annotations in a module of `mansard.commands` and add a line to `COMMANDS`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from mansard import __version__
from mansard.commands.quick import planner

if TYPE_CHECKING:
    import typer


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: where its function is, what the help screen says of it and under which heading."""

    name: str
    target: str  # module:function
    help: str
    panel: str

    def load(self) -> Callable[..., Any]:
        """Import the command's function."""
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), function)
        return loaded


PLAN, RUN, PROVE = "Plan", "Run", "Prove"
COMMANDS: tuple[Command, ...] = (
    Command("plan", "mansard.commands.plan:plan", "Say what it takes to serve a model, before a GPU is rented.", PLAN),
    Command("explain", "mansard.commands.explain:explain", "Show the roofline of every op of a step.", PLAN),
    Command("gpus", "mansard.commands.gpus:gpus", "List the hardware that plans know.", PLAN),
    Command("simulate", "mansard.commands.simulate:simulate", "Simulate a deployment under traffic.", PLAN),
    Command("calibrate", "mansard.commands.calibrate:calibrate", "Fit a profile to a recorded run.", PLAN),
    Command("serve", "mansard.commands.serve:serve", "Serve a model over OpenAI's HTTP API.", RUN),
    Command("generate", "mansard.commands.generate:generate", "Continue one prompt and print its speed.", RUN),
    Command("chat", "mansard.commands.chat:chat", "Talk with a model in the terminal.", RUN),
    Command("models", "mansard.commands.models:models", "Show what a model file holds.", RUN),
    Command("bench", "mansard.commands.bench:bench", "Measure a server or the engine beside the roof.", PROVE),
    Command("eval", "mansard.commands.eval:evaluate", "Say what a quantization costs in quality.", PROVE),
    Command("roof", "mansard.commands.roof:roof", "Measure this machine's own ceilings.", PLAN),
    Command("demo", "mansard.commands.demo:demo", "Start a server, ask it one question, show its speed.", RUN),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 0, 2 for what a person can mend, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    plan = planner(given)
    if plan is not None:
        sys.exit(_status(plan))
    build_app(given)(args=given, prog_name="mansard")


def _status(run: Callable[[], bool]) -> int:
    """Run and return the exit status: 0, 1 when the answer is no, 2 for a person's error, 130 when interrupted."""
    try:
        return 0 if run() else 1
    except (ValueError, OSError, ImportError) as error:
        print(f"mansard: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command that `arguments` name loaded, and the others known by name."""
    import typer

    app = typer.Typer(
        help="Run large language models well, and know how close they are to what the hardware allows.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root())
    called = next((a for a in arguments if not a.startswith("-")), None)
    for command in COMMANDS:
        function = command.load() if command.name == called else _not_loaded
        if isinstance(function, typer.Typer):
            app.add_typer(_reporting_all(function), name=command.name, help=command.help, rich_help_panel=command.panel)
            continue
        function = _reporting_errors(function) if command.name == called else function
        app.command(command.name, help=command.help, rich_help_panel=command.panel)(function)
    return app


def _root() -> Callable[..., None]:
    """Return what takes the options that stand before a command."""
    import typer

    def print_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"mansard {__version__}")
            raise typer.Exit

    def root(version: bool = False) -> None:
        pass

    option = typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    root.__annotations__["version"] = Annotated[bool, option]
    return root


def _not_loaded() -> None:
    """Stand in for a command on the help screen."""


def _reporting_all(group: typer.Typer) -> typer.Typer:
    """Make the errors of every command of a group one line."""
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = _reporting_errors(command.callback)
    return group


def _reporting_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a person's errors one line on stderr and exit status 2."""
    import typer

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except (ValueError, OSError, ImportError) as error:
            typer.echo(f"mansard: {_one_line(error)}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    main()
