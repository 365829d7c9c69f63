//! The accounts: a SQLite file with balances, a ledger of every transfer, and the fence.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use ticketing_client::{Dialect, fence_table};

/// What every account starts with.
pub(crate) const OPENING: i64 = 1000;

/// A transfer between two accounts. As text `PAYER:PAYEE:AMOUNT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) payer: u32,
    pub(crate) payee: u32,
    pub(crate) amount: i64,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.payer, self.payee, self.amount)
    }
}

impl FromStr for Transfer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split(':').map(str::parse::<u32>);
            let mut next = || parts.next()?.ok();
            Some(Transfer {
                payer: next()?,
                payee: next()?,
                amount: next()?.into(),
            })
        };
        parse().ok_or("PAYER:PAYEE:AMOUNT")
    }
}

impl Transfer {
    /// The keys that it needs a ticket on.
    pub(crate) fn keys(self) -> [String; 2] {
        [key(self.payer), key(self.payee)]
    }
}

/// An account's key.
pub(crate) fn key(account: u32) -> String {
    format!("account-{account}")
}

/// An open database of accounts.
pub(crate) struct Bank {
    file: Utf8PathBuf,
    connection: Connection,
}

/// What an inspection of the accounts found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Audit {
    /// The sum of all balances.
    pub(crate) total: i64,
    /// Each account's balance, by its id.
    pub(crate) balances: Vec<i64>,
    /// What the sum should be: nothing comes in or goes out.
    pub(crate) opening: i64,
    /// Accounts whose balance is not the opening one plus the ledger: id, balance, what it should
    /// be.
    pub(crate) wrong: Vec<(u32, i64, i64)>,
    /// The tokens of the ledger's transfers, in the order of their commits.
    pub(crate) tokens: Vec<u64>,
    /// Accounts whose fence does not hold the last token of the ledger's transfers: id.
    pub(crate) unfenced: Vec<u32>,
}

impl Audit {
    /// The account with the most money.
    pub(crate) fn richest(&self) -> u32 {
        let richest = (0..)
            .zip(&self.balances)
            .max_by_key(|(_, balance)| **balance);
        richest.map_or(0, |(account, _)| account)
    }

    /// Is every balance what the ledger says?
    pub(crate) fn is_sound(&self) -> bool {
        self.total == self.opening && self.wrong.is_empty()
    }
}

impl Bank {
    /// Makes a new file with `accounts` accounts.
    pub(crate) fn create(file: &Utf8Path, accounts: u32) -> rusqlite::Result<Self> {
        let mut bank = Self::open(file)?;
        let tx = bank.begin()?;
        tx.execute_batch(
            "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
             CREATE TABLE ledger (
                 id INTEGER PRIMARY KEY, token INTEGER NOT NULL,
                 payer INTEGER NOT NULL, payee INTEGER NOT NULL, amount INTEGER NOT NULL);",
        )?;
        tx.execute(fence_table(Dialect::Sqlite), [])?;
        for account in 0..accounts {
            tx.execute(
                "INSERT INTO account VALUES (?1, ?2)",
                params![account, OPENING],
            )?;
        }
        tx.commit()?;
        Ok(bank)
    }

    /// Opens a file.
    pub(crate) fn open(file: &Utf8Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(30))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(Bank {
            file: file.to_owned(),
            connection,
        })
    }

    /// The file.
    pub(crate) fn file(&self) -> &Utf8Path {
        &self.file
    }

    /// Copies the whole database to a new file and opens that.
    pub(crate) fn copy_to(&self, file: &Utf8Path) -> rusqlite::Result<Self> {
        self.connection.execute("VACUUM INTO ?1", [file.as_str()])?;
        Self::open(file)
    }

    /// Begins a transaction that may write. At once `IMMEDIATE`: a deferred one that read first
    /// would end in SQLITE_BUSY (`docs/fencing.md`).
    pub(crate) fn begin(&mut self) -> rusqlite::Result<Transaction<'_>> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
    }

    /// Compares the balances with the ledger and the fence.
    pub(crate) fn audit(&mut self) -> rusqlite::Result<Audit> {
        let tx = self.begin()?;
        let mut audit = Audit::default();
        let mut accounts = tx.prepare(
            "SELECT id, balance,
                ?1 + (SELECT ifnull(sum(amount), 0) FROM ledger WHERE payee = account.id)
                   - (SELECT ifnull(sum(amount), 0) FROM ledger WHERE payer = account.id),
                (SELECT max(token) FROM ledger WHERE account.id IN (payer, payee))
                   IS (SELECT token FROM ticketing_fence WHERE key = 'account-' || account.id)
             FROM account ORDER BY id",
        )?;
        let mut rows = accounts.query([OPENING])?;
        while let Some(row) = rows.next()? {
            let (id, balance, expected) = (row.get(0)?, row.get(1)?, row.get(2)?);
            audit.total += balance;
            audit.balances.push(balance);
            audit.opening += OPENING;
            if balance != expected {
                audit.wrong.push((id, balance, expected));
            }
            if !row.get::<_, bool>(3)? {
                audit.unfenced.push(id);
            }
        }
        let mut ledger = tx.prepare("SELECT token FROM ledger ORDER BY id")?;
        // SQLite's integers are signed; tokens stay below 2^63 (S3).
        let tokens = ledger.query_map([], |row| row.get::<_, i64>(0))?;
        audit.tokens = tokens
            .map(|token| token.map(i64::cast_unsigned))
            .collect::<Result<_, _>>()?;
        Ok(audit)
    }
}

/// An account's balance.
pub(crate) fn balance(tx: &Transaction<'_>, account: u32) -> rusqlite::Result<i64> {
    tx.query_row(
        "SELECT balance FROM account WHERE id = ?1",
        [account],
        |row| row.get(0),
    )
}

/// Writes a transfer down: both new balances and the ledger's line.
pub(crate) fn write(
    tx: &Transaction<'_>,
    transfer: Transfer,
    token: u64,
    payer_balance: i64,
    payee_balance: i64,
) -> rusqlite::Result<()> {
    let Transfer {
        payer,
        payee,
        amount,
    } = transfer;
    let set = "UPDATE account SET balance = ?2 WHERE id = ?1";
    tx.execute(set, params![payer, payer_balance])?;
    tx.execute(set, params![payee, payee_balance])?;
    tx.execute(
        "INSERT INTO ledger (token, payer, payee, amount) VALUES (?1, ?2, ?3, ?4)",
        params![token.cast_signed(), payer, payee, amount],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bank(accounts: u32) -> (tempfile::TempDir, Bank) {
        let folder = tempfile::tempdir().unwrap();
        let file = camino::Utf8PathBuf::try_from(folder.path().join("bank.db")).unwrap();
        let bank = Bank::create(&file, accounts).unwrap();
        (folder, bank)
    }

    fn fence(tx: &Transaction<'_>, transfer: Transfer, token: u64) {
        for key in transfer.keys() {
            let sql = "INSERT OR REPLACE INTO ticketing_fence VALUES (?1, ?2)";
            tx.execute(sql, params![key, token.cast_signed()]).unwrap();
        }
    }

    const TRANSFER: Transfer = Transfer {
        payer: 0,
        payee: 1,
        amount: 10,
    };

    #[test]
    fn a_transfer_survives_its_text() {
        assert_eq!(TRANSFER.to_string().parse(), Ok(TRANSFER));
        assert!("0:2".parse::<Transfer>().is_err());
        assert!("0:2:x".parse::<Transfer>().is_err());
    }

    #[test]
    fn an_audit_of_sound_accounts_finds_nothing() {
        let (_folder, mut bank) = bank(3);
        let tx = bank.begin().unwrap();
        fence(&tx, TRANSFER, 7);
        let payer = balance(&tx, 0).unwrap();
        write(&tx, TRANSFER, 7, payer - 10, OPENING + 10).unwrap();
        tx.commit().unwrap();
        let audit = bank.audit().unwrap();
        assert!(audit.is_sound());
        assert_eq!(audit.balances, [OPENING - 10, OPENING + 10, OPENING]);
        assert_eq!((audit.total, audit.opening), (3 * OPENING, 3 * OPENING));
        assert_eq!(audit.tokens, [7]);
        assert!(audit.unfenced.is_empty());
    }

    #[test]
    fn an_audit_finds_a_lost_update_and_a_missing_fence() {
        let (folder, mut bank) = bank(3);
        let tx = bank.begin().unwrap();
        fence(&tx, TRANSFER, 7);
        write(&tx, TRANSFER, 7, OPENING - 10, OPENING + 10).unwrap();
        // As if the first had not been: account 0 loses an update, account 2 gains one.
        let second = Transfer {
            payer: 0,
            payee: 2,
            amount: 5,
        };
        write(&tx, second, 8, OPENING - 5, OPENING + 5).unwrap();
        tx.commit().unwrap();

        let file = camino::Utf8PathBuf::try_from(folder.path().join("copy.db")).unwrap();
        let copy = bank.copy_to(&file).unwrap();
        for mut bank in [bank, copy] {
            let audit = bank.audit().unwrap();
            assert!(!audit.is_sound());
            assert_eq!(
                (audit.total, audit.opening),
                (3 * OPENING + 10, 3 * OPENING)
            );
            assert_eq!(audit.richest(), 1);
            assert_eq!(audit.wrong, [(0, OPENING - 5, OPENING - 15)]);
            assert_eq!(audit.unfenced, [0, 2]);
            assert_eq!(audit.tokens, [7, 8]);
        }
    }
}
