"""The subcommands of `mansard`, one module each; `mansard.cli` names them and loads only what is called."""
