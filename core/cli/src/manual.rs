//! `ticketing completions` and `ticketing man`: what a package installs beside the program.

use std::io::{Write, stdout};

use camino::Utf8PathBuf;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write the page of every command into this folder, which must exist, instead of printing
    /// the program's own
    #[arg(value_name = "FOLDER")]
    folder: Option<Utf8PathBuf>,
}

/// Prints the completions of `command` for a shell.
pub(crate) fn completions(args: &CompletionsArgs, command: &Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = command.get_name();
    clap_complete::generate(args.shell, &mut without_hidden(command), name, &mut script);
    print(&script)
}

/// The command with the subcommands that users know; some shells would be told of all.
fn without_hidden(command: &Command) -> Command {
    let known = command.get_subcommands().filter(|c| !c.is_hide_set());
    Command::new("ticketing")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(known.cloned())
}

/// Prints or writes the manual of `command`.
pub(crate) fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    if let Some(folder) = &args.folder {
        return clap_mangen::generate_to(command, folder)
            .map_err(|error| Failure::run(&format!("cannot write into {folder}"), error));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::run("cannot make the page", error))?;
    print(&page)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run("cannot write to standard output", error))
}
