//! The fence on a real SQLite file (C20).

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(feature = "rusqlite")]

mod peer;

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;
use ticketing_client::{Dialect, FenceError, Ticket, TicketBroker, TicketSet, fence_table};

use crate::peer::{Conn, Peer, secs, until};

struct Database {
    dir: TempDir,
    db: Connection,
}

impl Database {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Connection::open(dir.path().join("accounts.db")).unwrap();
        db.execute_batch(fence_table(Dialect::Sqlite)).unwrap();
        db.execute_batch(
            "CREATE TABLE account (id text PRIMARY KEY, balance integer NOT NULL);
             INSERT INTO account VALUES ('a', 100);",
        )
        .unwrap();
        Database { dir, db }
    }

    /// A second connection to the same file.
    fn again(&self) -> Connection {
        Connection::open(self.dir.path().join("accounts.db")).unwrap()
    }

    fn balance(&self) -> i64 {
        let sql = "SELECT balance FROM account WHERE id = 'a'";
        self.db.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn fences(&self) -> Vec<(String, i64)> {
        let mut rows = self
            .db
            .prepare("SELECT key, token FROM ticketing_fence ORDER BY key")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// One fenced transaction that writes the balance.
    fn write(&mut self, ticket: &Ticket, balance: i64) -> Result<(), FenceError> {
        write(&mut self.db, ticket, balance)
    }
}

fn write(db: &mut Connection, ticket: &Ticket, balance: i64) -> Result<(), FenceError> {
    let mut tx = db
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    ticket.fence(&mut tx)?;
    let sql = "UPDATE account SET balance = ?1 WHERE id = 'a'";
    tx.execute(sql, [balance]).unwrap();
    tx.commit().unwrap();
    Ok(())
}

async fn client() -> (Peer, TicketBroker, Conn) {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    (peer, broker, conn)
}

/// Kept, so that the peer has no releases to answer.
async fn ticket(broker: &TicketBroker, conn: &mut Conn, key: &str, token: u64) -> Ticket {
    let ticket = crate::peer::ticket(broker, conn, key, token).await;
    ticket.keep();
    ticket
}

async fn set(broker: &TicketBroker, conn: &mut Conn, keys: &[&str], token: u64) -> TicketSet {
    let (set, _) = tokio::join!(
        broker.acquire_set(keys, secs(5), secs(30), Duration::ZERO),
        conn.grant(token)
    );
    let set = set.unwrap();
    set.keep();
    set
}

#[track_caller]
fn stale(result: Result<(), FenceError>, key: &str, token: u64) {
    match result.unwrap_err() {
        FenceError::Stale { key: k, token: t } => assert_eq!((&*k, t), (key, token)),
        other => panic!("not stale: {other}"),
    }
}

#[track_caller]
fn database(result: Result<(), FenceError>, why: &str) {
    match result.unwrap_err() {
        FenceError::Database(e) => assert!(e.to_string().contains(why), "{e}"),
        other => panic!("not the database's: {other}"),
    }
}

#[tokio::test]
async fn c20_a_stale_token_is_refused_and_the_whole_transaction_rolled_back() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let old = ticket(&broker, &mut conn, "a", 10).await;
    let new = ticket(&broker, &mut conn, "a", 11).await;
    database.write(&new, 200).unwrap();
    // The old holder wakes up. Its transaction writes before and after the fence, even.
    {
        let mut tx = database.db.transaction().unwrap();
        tx.execute("UPDATE account SET balance = 1", []).unwrap();
        stale(old.fence(&mut tx), "a", 10);
    }
    stale(database.write(&old, 1), "a", 10);
    assert_eq!(database.balance(), 200);
    assert_eq!(database.fences(), [("a".to_owned(), 11)]);
}

#[tokio::test]
async fn c20_a_holder_stopped_past_its_lease_is_refused() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let (stopped, _) = tokio::join!(
        broker.acquire("a", secs(5), secs(3), Duration::ZERO),
        conn.grant(20)
    );
    let stopped = stopped.unwrap();
    let mut its_own = database.again();
    stopped.expired().await;
    // The lease ran out, the broker served the next one.
    let next = ticket(&broker, &mut conn, "a", 21).await;
    database.write(&next, 300).unwrap();
    stale(write(&mut its_own, &stopped, 7), "a", 20);
    assert_eq!(database.balance(), 300);
}

#[tokio::test]
async fn c20_one_ticket_makes_one_transaction_and_fence_again_a_further_one() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let first = ticket(&broker, &mut conn, "a", 30).await;
    database.write(&first, 1).unwrap();
    stale(database.write(&first, 2), "a", 30); // strictly above: a replay too
    {
        let mut tx = database.db.transaction().unwrap();
        first.fence_again(&mut tx).unwrap();
        tx.execute("UPDATE account SET balance = 3", []).unwrap();
        tx.commit().unwrap();
    }
    let later = ticket(&broker, &mut conn, "a", 31).await;
    database.write(&later, 4).unwrap();
    {
        let mut tx = database.db.transaction().unwrap();
        stale(first.fence_again(&mut tx), "a", 30);
    }
    assert_eq!(database.balance(), 4);
    // What was rolled back has not used the token up.
    let last = ticket(&broker, &mut conn, "a", 32).await;
    {
        let mut tx = database.db.transaction().unwrap();
        last.fence(&mut tx).unwrap();
    }
    database.write(&last, 5).unwrap();
    assert_eq!(database.balance(), 5);
}

#[tokio::test]
async fn c20_a_set_fences_each_key_and_one_stale_key_refuses_all() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let both = set(&broker, &mut conn, &["b", "a"], 40).await;
    {
        let mut tx = database.db.transaction().unwrap();
        both.fence(&mut tx).unwrap();
        tx.commit().unwrap();
    }
    let pair = [("a".to_owned(), 40), ("b".to_owned(), 40)];
    assert_eq!(database.fences(), pair);
    let b = ticket(&broker, &mut conn, "b", 42).await;
    database.write(&b, 6).unwrap();
    let stopped = set(&broker, &mut conn, &["a", "b", "c"], 41).await;
    {
        let mut tx = database.db.transaction().unwrap();
        stale(stopped.fence(&mut tx), "b", 41);
    }
    let expected = [("a".to_owned(), 40), ("b".to_owned(), 42)];
    assert_eq!(database.fences(), expected, "nothing of a and c");
}

#[tokio::test]
async fn c20_a_set_is_fenced_in_key_order() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    database
        .db
        .execute_batch(
            "CREATE TABLE seen (n integer PRIMARY KEY, key text);
             CREATE TRIGGER t AFTER INSERT ON ticketing_fence
             BEGIN INSERT INTO seen (key) VALUES (new.key); END;",
        )
        .unwrap();
    let held = set(&broker, &mut conn, &["z", "B", "a", "é", "a/b"], 50).await;
    let mut tx = database.db.transaction().unwrap();
    held.fence(&mut tx).unwrap();
    tx.commit().unwrap();
    let mut rows = database
        .db
        .prepare("SELECT key FROM seen ORDER BY n")
        .unwrap();
    let seen: Vec<String> = rows
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(seen, ["B", "a", "a/b", "z", "é"], "by bytes");
}

#[tokio::test]
async fn c20_keys_are_compared_byte_for_byte() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let keys = [
        "Order",
        "order",
        "ORDER",
        "');DROP/**/TABLE/**/account;--",
        "\"q\"",
        "é",
        "e\u{301}",
        "𝄞🎫",
        "a\0b",
        "a",
    ];
    for (n, key) in keys.iter().enumerate() {
        let token = 100 - u64::try_from(n).unwrap(); // falling: they are no rows of each other
        let held = ticket(&broker, &mut conn, key, token).await;
        database.write(&held, 1).unwrap();
        stale(database.write(&held, 2), key, token);
    }
    assert_eq!(database.fences().len(), keys.len());
}

#[tokio::test]
async fn c20_the_largest_token_fits_and_a_larger_one_is_an_error_of_its_own() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    let largest = ticket(&broker, &mut conn, "a", i64::MAX as u64).await;
    database.write(&largest, 1).unwrap();
    let above = ticket(&broker, &mut conn, "b", u64::MAX).await;
    let e = database.write(&above, 2).unwrap_err();
    assert!(matches!(e, FenceError::TokenTooLarge(u64::MAX)), "{e}");
}

#[tokio::test]
async fn c20_other_failures_are_the_databases() {
    let (_peer, broker, mut conn) = client().await;
    let mut database_ = Database::new();
    let held = ticket(&broker, &mut conn, "a", 60).await;
    // Another NOT NULL rule, broken within the fence statement by the user's own trigger.
    let trigger = "CREATE TABLE my_ticketing_fence (token integer NOT NULL);
         CREATE TRIGGER t AFTER INSERT ON ticketing_fence
         BEGIN INSERT INTO my_ticketing_fence VALUES (NULL); END;";
    database_.db.execute_batch(trigger).unwrap();
    database(database_.write(&held, 1), "my_ticketing_fence.token");
    database_.db.execute_batch("DROP TRIGGER t").unwrap();

    // Locked by another writer.
    let mut other = database_.again();
    let blocking = other
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    database_.db.busy_timeout(Duration::ZERO).unwrap();
    {
        let mut tx = database_.db.transaction().unwrap(); // deferred
        database(held.fence(&mut tx), "locked");
    }
    drop(blocking);

    // The transaction has ended behind the helper's back: autocommit protects nothing.
    {
        let mut tx = database_.db.transaction().unwrap();
        tx.execute_batch("ROLLBACK").unwrap();
        database(held.fence(&mut tx), "autocommit");
    }
    assert!(database_.fences().is_empty());

    database_
        .db
        .execute_batch("DROP TABLE ticketing_fence")
        .unwrap();
    database(database_.write(&held, 1), "no such table");
    assert_eq!(database_.balance(), 100);
}

#[tokio::test]
async fn c20_of_two_tickets_that_race_the_later_one_is_what_remains() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new();
    for round in 0..20_i64 {
        let token = 1000 + 2 * u64::try_from(round).unwrap();
        let (old, new) = (
            ticket(&broker, &mut conn, "a", token).await,
            ticket(&broker, &mut conn, "a", token + 1).await,
        );
        let mut its_own = database.again();
        its_own.busy_timeout(secs(30)).unwrap();
        database.db.busy_timeout(secs(30)).unwrap();
        let later = 2 * round + 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = write(&mut its_own, &old, later - 1); // either order
            });
            database.write(&new, later).unwrap();
        });
        assert_eq!(database.balance(), later);
    }
}
