//! What the demo plays: the transfers of many workers, and a write that comes late.

use std::fmt::Display;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use indicatif::{ProgressBar, ProgressStyle};

use super::bank::{Bank, Transfer};
use super::child::Process;
use super::late;
use super::term::Term;
use super::verdict::{Evidence, Late};
use crate::args::DemoArgs;
use crate::failure::Failure;

/// How often what is shown on a terminal moves.
const TICK: Duration = Duration::from_millis(200);

/// A running broker and what its workers need to know.
pub(crate) struct Stage {
    /// Ends when the stage is dropped.
    _broker: Process,
    address: String,
    accounts: u32,
}

/// A fault of the demo's own databases.
pub(crate) fn bank_error(error: impl Display) -> Failure {
    Failure::run("cannot use the accounts", error)
}

impl Stage {
    /// Starts a durable broker on a free port, with its state in `folder`.
    pub(crate) async fn set(folder: &Utf8Path, accounts: u32) -> Result<Self, Failure> {
        let data = folder.join("broker");
        let args = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log",
            "warn",
            "--data-dir",
            data.as_str(),
        ];
        let mut broker = Process::start("broker", &args, || ())?;
        let line = broker.line().await?;
        match line.strip_prefix("listening on ") {
            Some(address) => Ok(Stage {
                address: address.to_owned(),
                _broker: broker,
                accounts,
            }),
            None => Err(Failure::Run(format!("the broker says {line:?}"))),
        }
    }

    /// Lets the workers move money, all at once, and gives what was seen.
    pub(crate) async fn transfers(
        &self,
        args: &DemoArgs,
        bank: &mut Bank,
    ) -> Result<Evidence, Failure> {
        let before = bank.audit().map_err(bank_error)?;
        let workers = u32::from(args.workers);
        let shares: Vec<_> = (0..workers)
            .map(|index| args.transfers / workers + u32::from(index < args.transfers % workers))
            .collect();
        let started = Instant::now();
        let bar = progress(args.transfers);
        let mut running = Vec::new();
        for (index, share) in (0u64..).zip(&shares) {
            let bar = bar.clone();
            let options = [
                ("accounts", self.accounts.to_string()),
                ("transfers", share.to_string()),
                ("work", args.work.to_string()),
                ("seed", args.seed.wrapping_add(index << 32).to_string()),
            ];
            running.push(self.start("demo-worker", bank, &options, move || bar.inc(1))?);
        }
        let mut terms = Vec::new();
        for (worker, share) in running.iter_mut().zip(&shares) {
            let mut of_worker = Vec::new();
            for _ in 0..*share {
                of_worker.push(term(worker).await?);
            }
            worker.end().await?;
            terms.push(of_worker);
        }
        let took = started.elapsed();
        bar.finish_and_clear();
        let after = bank.audit().map_err(bank_error)?;
        Ok(Evidence {
            shares,
            terms,
            took,
            before,
            after,
        })
    }

    /// Stops a holder past its lease, lets the next one work, and wakes the first one up.
    pub(crate) async fn late_write(
        &self,
        bank: &mut Bank,
        unfenced: bool,
    ) -> Result<Late, Failure> {
        let told = if unfenced {
            "without the fence, on a copy"
        } else {
            "with the fence"
        };
        let _spinner = spinner(format!("a holder is stopped past its lease, {told}"));
        // The next holder moves money that is there, so that losing it shows in the total.
        let richest = bank.audit().map_err(bank_error)?.richest();
        let [first, second] = [1, 2].map(|step| (richest + step) % self.accounts);
        let planned = Transfer {
            payer: first,
            payee: second,
            amount: 10,
        };
        let meanwhile = Transfer {
            payer: richest,
            payee: first,
            amount: 25,
        };

        let options = [
            ("transfer", planned.to_string()),
            ("unfenced", unfenced.to_string()),
        ];
        let mut holder = self.start("demo-late", bank, &options, || ())?;
        let line = holder.line().await?;
        let (token, since) = late::parse_holding(&line).ok_or_else(|| unexpected(&line))?;
        holder.stop()?;
        // It has something to read, and would write now if it were not stopped.
        holder.tell("go on")?;

        let options = [
            ("accounts", self.accounts.to_string()),
            ("transfers", "1".to_owned()),
            ("work", "0".to_owned()),
            ("seed", "0".to_owned()),
            ("only", meanwhile.to_string()),
        ];
        let mut next_holder = self.start("demo-worker", bank, &options, || ())?;
        let next = term(&mut next_holder).await?;
        next_holder.end().await?;

        holder.go_on()?;
        let written = match holder.line().await?.as_str() {
            late::WRITTEN => true,
            late::REFUSED => false,
            line => return Err(unexpected(line)),
        };
        holder.end().await?;
        let after = bank.audit().map_err(bank_error)?;
        Ok(Late {
            unfenced,
            token,
            since,
            lease: late::LEASE,
            next,
            written,
            after,
        })
    }

    /// Starts a process of the demo on the accounts of `bank`.
    fn start(
        &self,
        role: &str,
        bank: &Bank,
        options: &[(&str, String)],
        on_line: impl Fn() + Send + 'static,
    ) -> Result<Process, Failure> {
        let mut args = vec![
            role.to_owned(),
            format!("--broker={}", self.address),
            format!("--database={}", bank.file()),
        ];
        args.extend(
            options
                .iter()
                .map(|(name, value)| format!("--{name}={value}")),
        );
        Process::start(role, &args, on_line)
    }
}

async fn term(worker: &mut Process) -> Result<Term, Failure> {
    worker.line().await?.parse().map_err(Failure::Run)
}

fn unexpected(line: &str) -> Failure {
    Failure::Run(format!("a process of the demo says {line:?}"))
}

/// Turns until it is dropped; shown where the progress is.
fn spinner(text: String) -> impl Drop {
    struct Turning(ProgressBar);
    impl Drop for Turning {
        fn drop(&mut self) {
            self.0.finish_and_clear();
        }
    }
    let bar = ProgressBar::new_spinner().with_message(text);
    bar.enable_steady_tick(TICK);
    Turning(bar)
}

/// Shown on standard error when that is a terminal, nowhere else.
fn progress(transfers: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} transfers")
        .expect("the template is right");
    let bar = ProgressBar::new(transfers.into()).with_style(style);
    bar.enable_steady_tick(TICK);
    bar
}
