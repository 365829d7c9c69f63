//! A process that moves money: for each transfer a ticket on the two accounts, a fenced
//! transaction, a release.

use std::io::{Write, stdout};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ticketing_client::{FenceError, TicketBroker, TicketError};

use super::bank::{self, Bank, Transfer};
use super::term::{Term, now};
use crate::args::WorkerArgs;
use crate::failure::Failure;

const WAIT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(60);
const MIN_WORK: Duration = Duration::from_secs(10);

/// How often one transfer is tried before the worker gives up.
const TRIES: u32 = 8;

/// Makes its transfers and writes a [`Term`] for each to standard output.
pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    // The client's connections live on the runtime's thread, so that the transaction may block
    // this one.
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let broker = TicketBroker::connect(args.broker.as_str())
            .map_err(|error| Failure::run("cannot use the broker", error))?;
        let mut bank = Bank::open(&args.database)
            .map_err(|error| Failure::run("cannot open the accounts", error))?;
        let mut choose = SmallRng::seed_from_u64(args.seed);
        for _ in 0..args.transfers {
            let transfer = match args.only {
                Some(transfer) => transfer,
                None => chosen(&mut choose, args.accounts),
            };
            let term = persist(
                &broker,
                &mut bank,
                transfer,
                Duration::from_millis(args.work),
            )
            .await?;
            let mut out = stdout().lock();
            writeln!(out, "{term}")
                .and_then(|()| out.flush())
                .map_err(|error| Failure::run("cannot tell the demo", error))?;
        }
        broker.close().await;
        Ok(())
    })
}

/// Two different accounts and an amount.
fn chosen(choose: &mut impl RngExt, accounts: u32) -> Transfer {
    let payer = choose.random_range(0..accounts);
    let payee = (payer + choose.random_range(1..accounts)) % accounts;
    Transfer {
        payer,
        payee,
        amount: choose.random_range(1..=50),
    }
}

/// Why a transfer was not made. Nothing of it is written.
#[derive(Debug)]
enum NotMade {
    Ticket(TicketError),
    Fence(FenceError),
    Bank(rusqlite::Error),
}

/// Makes a transfer, again after a failure that another try may mend.
async fn persist(
    broker: &TicketBroker,
    bank: &mut Bank,
    transfer: Transfer,
    work: Duration,
) -> Result<Term, Failure> {
    let mut tries = 0;
    loop {
        let why = match attempt(broker, bank, transfer, work).await {
            Ok(term) => return Ok(term),
            Err(NotMade::Ticket(
                error @ (TicketError::Timeout { .. }
                | TicketError::Busy { .. }
                | TicketError::NotConnected { .. }
                | TicketError::Indeterminate { .. }
                | TicketError::InsufficientLease { .. }),
            )) => error.to_string(),
            Err(NotMade::Fence(error @ FenceError::Stale { .. })) => error.to_string(),
            Err(NotMade::Ticket(error)) => return Err(Failure::run("no ticket", error)),
            Err(NotMade::Fence(error)) => return Err(Failure::run("cannot fence", error)),
            Err(NotMade::Bank(error)) => return Err(Failure::run("cannot write", error)),
        };
        tries += 1;
        if tries == TRIES {
            return Err(Failure::run(
                &format!("no transfer after {TRIES} tries"),
                why,
            ));
        }
        tokio::time::sleep(Duration::from_millis(50 << tries)).await;
    }
}

async fn attempt(
    broker: &TicketBroker,
    bank: &mut Bank,
    transfer: Transfer,
    work: Duration,
) -> Result<Term, NotMade> {
    let keys = transfer.keys();
    let ticket = broker
        .acquire_set(&keys, WAIT, LEASE, MIN_WORK)
        .await
        .map_err(NotMade::Ticket)?;
    let entered = now();
    // What a ticket is taken for beside the write: asking others, computing.
    tokio::time::sleep(work).await;
    {
        let mut tx = bank.begin().map_err(NotMade::Bank)?;
        ticket.fence(&mut tx).map_err(NotMade::Fence)?;
        make(&tx, transfer, ticket.token()).map_err(NotMade::Bank)?;
        tx.commit().map_err(NotMade::Bank)?;
    }
    let left = now();
    // The transfer is committed: what becomes of the release changes nothing for it.
    let _ = ticket.release().await;
    let accounts = [transfer.payer, transfer.payee];
    Ok(Term {
        token: ticket.token(),
        entered,
        left,
        accounts,
    })
}

/// Moves the money, as much of it as there is.
fn make(tx: &rusqlite::Transaction<'_>, transfer: Transfer, token: u64) -> rusqlite::Result<()> {
    let payer = bank::balance(tx, transfer.payer)?;
    let payee = bank::balance(tx, transfer.payee)?;
    let amount = transfer.amount.min(payer);
    bank::write(
        tx,
        Transfer { amount, ..transfer },
        token,
        payer - amount,
        payee + amount,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_of_a_transfer_differ_and_exist() {
        let mut choose = SmallRng::seed_from_u64(1);
        for accounts in 2..6 {
            for _ in 0..200 {
                let Transfer {
                    payer,
                    payee,
                    amount,
                } = chosen(&mut choose, accounts);
                assert!(payer != payee && payer < accounts && payee < accounts && amount > 0);
            }
        }
    }
}
