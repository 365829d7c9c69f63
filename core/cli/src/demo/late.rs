//! The process that is stopped past its lease and writes when it wakes up.
//!
//! It tells `holding TOKEN SINCE` once it has its ticket and has read the accounts, waits for a
//! line on standard input — the demo stops it there — and then writes what it had computed. It
//! never asks whether it still holds the ticket: a pause may fall between that question and the
//! write as well.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use ticketing_client::{FenceError, TicketBroker};

use super::bank::{self, Bank, Transfer};
use super::term::now;
use crate::args::LateArgs;
use crate::failure::Failure;

/// How long its lease is.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

const WAIT: Duration = Duration::from_secs(5);

/// Its last line, when the write was committed.
pub(crate) const WRITTEN: &str = "written";

/// Its last line, when the database refused the token.
pub(crate) const REFUSED: &str = "refused";

/// Its first line as token and time.
pub(crate) fn parse_holding(line: &str) -> Option<(u64, Duration)> {
    let (token, since) = line.strip_prefix("holding ")?.split_once(' ')?;
    Some((
        token.parse().ok()?,
        Duration::from_nanos(since.parse().ok()?),
    ))
}

/// Takes a ticket, waits to be stopped, writes.
pub(crate) fn run(args: &LateArgs) -> Result<(), Failure> {
    let tell = |line: &str| {
        let mut out = stdout().lock();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .map_err(|error| Failure::run("cannot tell the demo", error))
    };
    let bank_error = |error| Failure::run("cannot use the accounts", error);
    super::runtime()?.block_on(async {
        let broker = TicketBroker::connect(args.broker.as_str())
            .map_err(|error| Failure::run("cannot use the broker", error))?;
        if !broker.wait_ready(WAIT).await {
            return Err(Failure::Run("the broker is not ready".to_owned()));
        }
        let mut bank = Bank::open(&args.database).map_err(bank_error)?;

        let since = now();
        let ticket = broker
            .acquire_set(&args.transfer.keys(), WAIT, LEASE, Duration::ZERO)
            .await
            .map_err(|error| Failure::run("no ticket", error))?;
        let (payer, payee) = {
            let tx = bank.begin().map_err(bank_error)?;
            let payer = bank::balance(&tx, args.transfer.payer).map_err(bank_error)?;
            (
                payer,
                bank::balance(&tx, args.transfer.payee).map_err(bank_error)?,
            )
        };
        let amount = args.transfer.amount.min(payer);
        let transfer = Transfer {
            amount,
            ..args.transfer
        };
        tell(&format!("holding {} {}", ticket.token(), since.as_nanos()))?;
        let mut line = String::new();
        stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|error| Failure::run("the demo is gone", error))?;

        let mut tx = bank.begin().map_err(bank_error)?;
        if !args.unfenced {
            match ticket.fence(&mut tx) {
                Ok(()) => {}
                // The transaction is dropped here: rolled back.
                Err(FenceError::Stale { .. }) => return tell(REFUSED),
                Err(error) => return Err(Failure::run("cannot fence", error)),
            }
        }
        bank::write(
            &tx,
            transfer,
            ticket.token(),
            payer - amount,
            payee + amount,
        )
        .map_err(bank_error)?;
        tx.commit().map_err(bank_error)?;
        tell(WRITTEN)
    })
}
