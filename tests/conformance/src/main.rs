//! `conformance`: runs the suite. `scripts/conformance` builds what it needs and calls it.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;
use ticketing_conformance::scenario::{self, Scenario};
use ticketing_conformance::testee::Program;
use ticketing_conformance::{live, report, suite};

#[derive(Parser)]
#[command(about = "Runs the conformance suite against languages' packages")]
struct Cli {
    /// A language of languages.toml; every one if left out.
    #[arg(long = "language")]
    languages: Vec<String>,
    /// A scenario, by a part of its name; every one if left out.
    #[arg(long = "scenario")]
    scenarios: Vec<String>,
    /// Writes the results as JUnit's XML.
    #[arg(long)]
    junit: Option<PathBuf>,
    /// Prints which scenarios cover each clause, and fails on a gap; runs nothing.
    #[arg(long)]
    coverage: bool,
    /// The folder of scenarios and their exceptions.
    #[arg(long, default_value = "tests/conformance")]
    folder: PathBuf,
}

/// `languages.toml`: how each testee is started. `$NAME` is an environment variable.
#[derive(Deserialize)]
struct Languages {
    language: Vec<Language>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Language {
    name: String,
    faces: Vec<String>,
    command: Vec<String>,
}

/// One face of one language.
struct Column {
    name: String,
    program: Program,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<bool> {
    let mut scenarios = scenario::load(&cli.folder.join("scenarios"))?;
    if cli.coverage {
        let (table, gaps) = report::coverage(&scenarios);
        print!("{table}");
        ensure!(gaps.is_empty(), "no scenario covers {}", gaps.join(", "));
        return Ok(true);
    }
    let named = |scenario: &Scenario| {
        cli.scenarios.is_empty()
            || cli
                .scenarios
                .iter()
                .any(|part| scenario.name.contains(part))
    };
    scenarios.retain(named);
    ensure!(!scenarios.is_empty(), "no scenario has such a name");
    let lacks = suite::exceptions(&cli.folder.join("not-applicable.toml"))?;
    let known = suite::exceptions(&cli.folder.join("known-failures.toml"))?;
    let text = std::fs::read_to_string(cli.folder.join("languages.toml"))?;
    let languages: Languages = toml::from_str(&text).context("languages.toml")?;
    for asked in &cli.languages {
        let is_there = languages
            .language
            .iter()
            .any(|language| language.name == *asked);
        ensure!(is_there, "no language {asked:?} in languages.toml");
    }
    let mut columns = Vec::new();
    for language in &languages.language {
        if cli.languages.is_empty() || cli.languages.contains(&language.name) {
            let command: Vec<String> = language
                .command
                .iter()
                .map(|part| filled(part))
                .collect::<Result<_>>()?;
            columns.extend(language.faces.iter().map(|face| Column {
                name: format!("{} {face}", language.name),
                program: Program {
                    command: command.clone(),
                    environment: Vec::new(),
                    face: face.clone(),
                },
            }));
        }
    }
    let mut names: Vec<String> = scenarios.iter().map(|s| s.name.clone()).collect();
    let mut results = Vec::new();
    for column in &columns {
        let verdicts = suite::run(&column.program, &scenarios, &lacks, &known).await;
        let verdicts = verdicts.with_context(|| column.name.clone())?;
        results.push((column.name.clone(), verdicts));
    }
    if cli.scenarios.is_empty() {
        let broker = live::Broker::start(&filled("$TICKETING_PROGRAM")?).await?;
        for (number, with) in columns.iter().enumerate() {
            let name = format!("contends for a key of a real broker with {}", with.name);
            for (at, column) in columns[..=number].iter().enumerate() {
                let verdict = live::contend(&broker, &column.program, &with.program).await;
                results[at].1.insert(name.clone(), verdict);
            }
            names.push(name);
        }
        broker.stop().await?;
    }
    names.push(suite::CLEAN_END.to_owned());
    if let Some(file) = &cli.junit {
        std::fs::write(file, report::junit(&results))?;
    }
    print!("{}", report::table(&names, &results));
    Ok(report::is_green(&results))
}

/// A part of a command: an environment variable's value, or the text itself.
fn filled(part: &str) -> Result<String> {
    match part.strip_prefix('$') {
        None => Ok(part.to_owned()),
        Some(name) => match std::env::var(name) {
            Ok(value) => Ok(value),
            Err(_) => bail!("{name} is not set: scripts/conformance does that"),
        },
    }
}
