//! The fence on a real PostgreSQL, which this test starts on loopback (C20).

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(feature = "tokio-postgres")]

mod peer;
#[path = "postgres/mod.rs"]
mod postgres;

use std::time::Duration;

use ticketing_client::{Dialect, FenceError, Ticket, TicketBroker, TicketSet, fence_table};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

use crate::peer::{Conn, Peer, secs, soon, until};
use crate::postgres::Server;

/// A database of its own on the one server of this program.
struct Database {
    server: std::sync::Arc<Server>,
    name: String,
    db: Client,
}

impl Database {
    async fn new(name: &str) -> Self {
        let server = Server::shared();
        let admin = server.connect("postgres").await;
        admin
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await
            .unwrap();
        let db = server.connect(name).await;
        db.batch_execute(fence_table(Dialect::PostgreSql))
            .await
            .unwrap();
        db.batch_execute(
            "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO account VALUES ('a', 100);",
        )
        .await
        .unwrap();
        let name = name.to_owned();
        Database { server, name, db }
    }

    async fn again(&self) -> Client {
        self.server.connect(&self.name).await
    }

    async fn balance(&self) -> i64 {
        let sql = "SELECT balance FROM account WHERE id = 'a'";
        self.db.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn fences(&self) -> Vec<(String, i64)> {
        let sql = "SELECT key, token FROM ticketing_fence ORDER BY key";
        let rows = self.db.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn write(&mut self, ticket: &Ticket, balance: i64) -> Result<(), FenceError> {
        write(&mut self.db, ticket, balance).await
    }
}

async fn write(db: &mut Client, ticket: &Ticket, balance: i64) -> Result<(), FenceError> {
    let mut tx = db.transaction().await.unwrap();
    ticket.fence(&mut tx).await?;
    let sql = "UPDATE account SET balance = $1 WHERE id = 'a'";
    tx.execute(sql, &[&balance]).await.unwrap();
    tx.commit().await.unwrap();
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
        other => panic!("not stale: {other:?}"),
    }
}

/// The database's own error, which the caller can look into.
#[track_caller]
fn database(result: Result<(), FenceError>) -> tokio_postgres::Error {
    match result.unwrap_err() {
        FenceError::Database(e) => *e.downcast().expect("the driver's error"),
        other => panic!("not the database's: {other:?}"),
    }
}

#[tokio::test]
async fn c20_a_stale_token_is_refused_and_the_whole_transaction_rolled_back() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("stale").await;
    let old = ticket(&broker, &mut conn, "a", 10).await;
    let new = ticket(&broker, &mut conn, "a", 11).await;
    database.write(&new, 200).await.unwrap();
    {
        let mut tx = database.db.transaction().await.unwrap();
        tx.execute("UPDATE account SET balance = 1", &[])
            .await
            .unwrap();
        stale(old.fence(&mut tx).await, "a", 10);
        // A caller that swallows the error and commits: PostgreSQL has aborted the transaction.
        let _ = tx.commit().await;
    }
    stale(database.write(&old, 1).await, "a", 10);
    assert_eq!(database.balance().await, 200);
    assert_eq!(database.fences().await, [("a".to_owned(), 11)]);
}

#[tokio::test]
async fn c20_a_holder_stopped_past_its_lease_is_refused() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("stopped").await;
    let (stopped, _) = tokio::join!(
        broker.acquire("a", secs(5), secs(3), Duration::ZERO),
        conn.grant(20)
    );
    let stopped = stopped.unwrap();
    let mut its_own = database.again().await;
    stopped.expired().await;
    let next = ticket(&broker, &mut conn, "a", 21).await;
    database.write(&next, 300).await.unwrap();
    stale(write(&mut its_own, &stopped, 7).await, "a", 20);
    assert_eq!(database.balance().await, 300);
}

#[tokio::test]
async fn c20_one_ticket_makes_one_transaction_and_fence_again_a_further_one() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("again").await;
    let first = ticket(&broker, &mut conn, "a", 30).await;
    database.write(&first, 1).await.unwrap();
    stale(database.write(&first, 2).await, "a", 30);
    {
        let mut tx = database.db.transaction().await.unwrap();
        first.fence_again(&mut tx).await.unwrap();
        tx.execute("UPDATE account SET balance = 3", &[])
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    let later = ticket(&broker, &mut conn, "a", 31).await;
    database.write(&later, 4).await.unwrap();
    {
        let mut tx = database.db.transaction().await.unwrap();
        stale(first.fence_again(&mut tx).await, "a", 30);
    }
    assert_eq!(database.balance().await, 4);
    let last = ticket(&broker, &mut conn, "a", 32).await;
    {
        let mut tx = database.db.transaction().await.unwrap();
        last.fence(&mut tx).await.unwrap(); // and rolled back
    }
    database.write(&last, 5).await.unwrap();
    assert_eq!(database.balance().await, 5);
}

#[tokio::test]
async fn c20_a_set_fences_each_key_in_key_order_and_one_stale_key_refuses_all() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("sets").await;
    database
        .db
        .batch_execute(
            "CREATE TABLE seen (n serial, key text);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO seen (key) VALUES (new.key); RETURN new; END $$;
             CREATE TRIGGER t AFTER INSERT ON ticketing_fence
             FOR EACH ROW EXECUTE FUNCTION note();",
        )
        .await
        .unwrap();
    let held = set(&broker, &mut conn, &["z", "B", "a", "é", "a/b"], 50).await;
    {
        let mut tx = database.db.transaction().await.unwrap();
        held.fence(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    let rows = database
        .db
        .query("SELECT key FROM seen ORDER BY n", &[])
        .await
        .unwrap();
    let seen: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["B", "a", "a/b", "z", "é"], "by bytes");

    let a = ticket(&broker, &mut conn, "a", 52).await;
    database.write(&a, 6).await.unwrap();
    let stopped = set(&broker, &mut conn, &["B", "a", "new"], 51).await;
    {
        let mut tx = database.db.transaction().await.unwrap();
        stale(stopped.fence(&mut tx).await, "a", 51);
    }
    let fences = database.fences().await;
    assert_eq!(fences.len(), 5, "nothing of the new key");
    assert_eq!(fences[0], ("B".to_owned(), 50));
}

#[tokio::test]
async fn c20_sets_in_opposite_orders_do_not_deadlock() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("opposite").await;
    let mut other = database.again().await;
    for round in 0..20 {
        let token = 100 + 2 * round;
        let one = set(&broker, &mut conn, &["x", "y"], token).await;
        let two = set(&broker, &mut conn, &["y", "x"], token + 1).await;
        let fenced = async |db: &mut Client, set: &TicketSet| {
            let mut tx = db.transaction().await.unwrap();
            set.fence(&mut tx).await?;
            tx.commit().await.unwrap();
            Ok::<_, FenceError>(())
        };
        let (old, new) = soon("no deadlock", async {
            tokio::join!(fenced(&mut database.db, &one), fenced(&mut other, &two))
        })
        .await;
        new.unwrap();
        if old.is_err() {
            stale(old, "x", token);
        }
    }
}

#[tokio::test]
async fn c20_keys_are_compared_byte_for_byte() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("bytes").await;
    let keys = [
        "Order",
        "order",
        "ORDER",
        "');DROP/**/TABLE/**/account;--",
        "\"q\"",
        "é",
        "e\u{301}",
        "𝄞🎫",
        "a",
    ];
    for (n, key) in keys.iter().enumerate() {
        let token = 100 - u64::try_from(n).unwrap();
        let held = ticket(&broker, &mut conn, key, token).await;
        database.write(&held, 1).await.unwrap();
        stale(database.write(&held, 2).await, key, token);
    }
    assert_eq!(database.fences().await.len(), keys.len());
    // PostgreSQL's text holds no NUL: an error, not a fence on another key.
    let nul = ticket(&broker, &mut conn, "a\0b", 200).await;
    let e = crate::database(database.write(&nul, 1).await);
    assert_eq!(
        e.code(),
        Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE),
        "{e}"
    );
}

#[tokio::test]
async fn c20_the_largest_token_fits_and_a_larger_one_is_an_error_of_its_own() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("largest").await;
    let largest = ticket(&broker, &mut conn, "a", i64::MAX as u64).await;
    database.write(&largest, 1).await.unwrap();
    let above = ticket(&broker, &mut conn, "b", u64::MAX).await;
    let e = database.write(&above, 2).await.unwrap_err();
    assert!(matches!(e, FenceError::TokenTooLarge(u64::MAX)), "{e}");
}

#[tokio::test]
async fn c20_other_failures_are_the_databases() {
    let (_peer, broker, mut conn) = client().await;
    let mut database_ = Database::new("others").await;
    let held = ticket(&broker, &mut conn, "a", 60).await;
    // Another NOT NULL rule, broken within the fence statement by the user's own trigger.
    let trigger = "CREATE TABLE mine (token bigint NOT NULL);
         CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO mine VALUES (NULL); RETURN new; END $$;
         CREATE TRIGGER t AFTER INSERT ON ticketing_fence FOR EACH ROW EXECUTE FUNCTION bad();";
    database_.db.batch_execute(trigger).await.unwrap();
    let e = database(database_.write(&held, 1).await);
    assert_eq!(e.code(), Some(&SqlState::NOT_NULL_VIOLATION));
    database_
        .db
        .batch_execute("DROP TRIGGER t ON ticketing_fence")
        .await
        .unwrap();

    // A transaction that had failed before.
    {
        let mut tx = database_.db.transaction().await.unwrap();
        tx.execute("SELECT 1/0", &[]).await.unwrap_err();
        let e = database(held.fence(&mut tx).await);
        assert_eq!(e.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
    }
    database_
        .db
        .batch_execute("DROP TABLE ticketing_fence")
        .await
        .unwrap();
    let e = database(database_.write(&held, 1).await);
    assert_eq!(e.code(), Some(&SqlState::UNDEFINED_TABLE));
    assert_eq!(database_.balance().await, 100);

    // The connection is gone.
    let mut gone = database_.again().await;
    {
        let mut tx = gone.transaction().await.unwrap();
        let pid: i32 = tx
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let sql = "SELECT pg_terminate_backend($1)";
        database_.db.query_one(sql, &[&pid]).await.unwrap();
        database(held.fence(&mut tx).await);
    }
}

#[tokio::test]
async fn c20_after_40001_the_same_ticket_may_repeat_the_transaction() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("repeat").await;
    let first = ticket(&broker, &mut conn, "a", 70).await;
    let second = ticket(&broker, &mut conn, "a", 71).await;
    let mut other = database.again().await;
    let repeatable = async |db: &mut Client, meanwhile: Option<&mut Database>| {
        let tx = db
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead);
        let mut tx = tx.start().await.unwrap();
        tx.query("SELECT 1 FROM account", &[]).await.unwrap(); // the snapshot is taken
        if let Some(database) = meanwhile {
            database.write(&first, 1).await.unwrap();
        }
        second.fence(&mut tx).await?;
        tx.execute("UPDATE account SET balance = 2", &[])
            .await
            .unwrap();
        tx.commit().await.unwrap();
        Ok::<_, FenceError>(())
    };
    let e = crate::database(repeatable(&mut other, Some(&mut database)).await);
    assert_eq!(e.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{e}");
    assert_eq!(database.balance().await, 1);
    repeatable(&mut other, None).await.unwrap();
    assert_eq!(database.balance().await, 2);
}

#[tokio::test]
async fn c20_in_read_committed_the_later_of_two_that_race_is_what_remains() {
    let (_peer, broker, mut conn) = client().await;
    let mut database = Database::new("race").await;
    let mut other = database.again().await;
    for round in 0..20_i64 {
        let token = 1000 + 2 * u64::try_from(round).unwrap();
        let old = ticket(&broker, &mut conn, "a", token).await;
        let new = ticket(&broker, &mut conn, "a", token + 1).await;
        let later = 2 * round + 1;
        let (first, second) = tokio::join!(
            write(&mut other, &old, later - 1),
            database.write(&new, later)
        );
        second.unwrap();
        if first.is_err() {
            stale(first, "a", token);
        }
        assert_eq!(database.balance().await, later);
    }
    // The old one's transaction is open, past its fence, when the new one's begins: it waits.
    let old = ticket(&broker, &mut conn, "a", 5000).await;
    let new = ticket(&broker, &mut conn, "a", 5001).await;
    let mut tx = other.transaction().await.unwrap();
    old.fence(&mut tx).await.unwrap();
    let later = database.write(&new, 500);
    let earlier = async {
        tx.execute("UPDATE account SET balance = 499", &[])
            .await
            .unwrap();
        tx.commit().await.unwrap();
    };
    let (later, ()) = tokio::join!(later, earlier);
    later.unwrap();
    assert_eq!(database.balance().await, 500);
}
