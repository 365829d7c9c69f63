//! The generator of the language bindings: UniFFI's own backends behind one command line.

#![forbid(unsafe_code)]

mod interface;
mod licences;

use std::process::ExitCode;

use anyhow::{Context, Result};
use camino::Utf8PathBuf;
use clap::{Parser, ValueEnum};
use uniffi_bindgen::bindings::{self, GenerateOptions, TargetLanguage};

#[derive(Parser)]
#[command(
    version,
    about = "Generates Ticketing's language bindings from the built library"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Writes the bindings of one language.
    Generate(Generate),
    /// Prints the interface, one line for each thing that a language sees: what core/ffi/interface.txt
    /// records.
    Interface {
        /// The definition.
        #[arg(long, default_value = "core/ffi/src/ticketing.udl")]
        udl: Utf8PathBuf,
    },
    /// Prints the licences of what is linked into the library, for a package to carry.
    Licences,
}

#[derive(clap::Args)]
struct Generate {
    /// The language.
    #[arg(long)]
    language: Language,
    /// The built library (a cdylib), which carries the interface.
    #[arg(long)]
    library: Utf8PathBuf,
    /// The folder to write to.
    #[arg(long)]
    out_dir: Utf8PathBuf,
    /// The configuration: one section for each language.
    #[arg(long, default_value = "uniffi.toml")]
    config: Utf8PathBuf,
    /// Accepted for maturin: what is generated is never formatted.
    #[arg(long)]
    no_format: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Language {
    Python,
    Kotlin,
    Swift,
}

impl Generate {
    fn run(self) -> Result<()> {
        let language = match self.language {
            Language::Python => TargetLanguage::Python,
            Language::Kotlin => TargetLanguage::Kotlin,
            Language::Swift => TargetLanguage::Swift,
        };
        bindings::generate(GenerateOptions {
            languages: vec![language],
            source: self.library.clone(),
            out_dir: self.out_dir,
            config_override: Some(self.config),
            ..GenerateOptions::default()
        })
        .with_context(|| format!("generating from {}", self.library))
    }
}

/// The program: reads the command line and does what it says.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Generate(generate) => generate.run(),
        Command::Interface { udl } => interface::of_file(&udl).map(|text| print!("{text}")),
        Command::Licences => licences::of_the_library().map(|text| print!("{text}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
