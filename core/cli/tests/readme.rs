//! The README's examples: the Rust one is compiled and run, the configuration is read.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

mod support;

use support::Running;
use ticketing_broker::config::Config;

// README: begin
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior::Immediate};
use ticketing_client::TicketBroker;

/// Moves money. Nothing is written if the ticket is not this transfer's any more.
async fn transfer(
    broker: &TicketBroker, // made once at start-up: TicketBroker::connect("127.0.0.1:5225")?
    bank: &mut Connection,
    [from, to]: [&str; 2],
    amount: i64,
) -> Result<(), Box<dyn std::error::Error>> {
    let [wait, lease, min_work] = [10, 30, 5].map(Duration::from_secs);
    let ticket = broker
        .acquire_set([from, to], wait, lease, min_work)
        .await?;
    {
        let mut tx = bank.transaction_with_behavior(Immediate)?;
        ticket.fence(&mut tx)?; // first; when it fails, `?` drops `tx`, which rolls back
        tx.execute(
            "UPDATE account SET balance = balance - ?2 WHERE id = ?1",
            (from, amount),
        )?;
        tx.execute(
            "UPDATE account SET balance = balance + ?2 WHERE id = ?1",
            (to, amount),
        )?;
        tx.commit()?;
    }
    // It is committed, whatever becomes of the release: one that is lost ends with the lease.
    let _ = ticket.release().await;
    Ok(())
}
// README: end

#[test]
fn the_readme_shows_the_code_that_is_tested_here() {
    let source = include_str!("readme.rs");
    let example = source.split("// README: begin\n").nth(1).unwrap();
    let example = example.split("// README: end\n").next().unwrap();
    let block = format!("```rust\n{example}```\n");
    assert!(
        include_str!("../../../README.md").contains(&block),
        "README.md should have:\n{block}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn c20_the_readme_example_moves_money_and_is_fenced() {
    let (_running, address) = Running::serve(["--memory"]);
    let broker = TicketBroker::connect(address.as_str()).unwrap();
    let mut bank = Connection::open_in_memory().unwrap();
    let accounts = "CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER);
        INSERT INTO account VALUES ('a', 100), ('b', 100);";
    bank.execute_batch(accounts).unwrap();
    bank.execute(
        ticketing_client::fence_table(ticketing_client::Dialect::Sqlite),
        [],
    )
    .unwrap();
    let balances = |bank: &Connection| {
        let sql = "SELECT group_concat(balance) FROM (SELECT balance FROM account ORDER BY id)";
        bank.query_row(sql, [], |row| row.get::<_, String>(0))
            .unwrap()
    };

    transfer(&broker, &mut bank, ["b", "a"], 30).await.unwrap();
    assert_eq!(balances(&bank), "130,70");
    // As if a later holder had written meanwhile.
    bank.execute(
        "UPDATE ticketing_fence SET token = ?1 WHERE key = 'b'",
        [i64::MAX],
    )
    .unwrap();
    let error = transfer(&broker, &mut bank, ["a", "b"], 30)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("stale"), "{error}");
    assert_eq!(balances(&bank), "130,70");
}

#[test]
fn the_readme_configuration_is_one() {
    let readme = include_str!("../../../README.md");
    let text = readme
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let config = Config::from_toml(text).unwrap();
    config.validate().unwrap();
    assert!(config.tls.is_some() && config.client_tokens.len() == 1);
}

#[test]
fn the_readme_has_every_key_of_the_configuration_with_its_default() {
    let readme = include_str!("../../../README.md");
    let (_, section) = readme.split_once("## Configure a broker").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut keys = 0;
    for row in rows {
        let cells: Vec<_> = row
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        let [key, flag, default, _, ""] = cells[..] else {
            continue;
        };
        keys += 1;
        let key = key.split("`, `").next().unwrap();
        let text = match default {
            "" => continue,
            number if number.parse::<u64>().is_ok() => format!("{key} = {number}"),
            "[]" | "true" | "false" => format!("{key} = {default}"),
            text => format!("{key} = {text:?}"),
        };
        let config =
            Config::from_toml(&text).unwrap_or_else(|error| panic!("{key} {flag}: {error}"));
        assert_eq!(
            format!("{config:?}"),
            format!("{:?}", Config::default()),
            "{key}"
        );
    }
    // Every field is one of the rows, and the table of flags has the same number.
    assert_eq!(keys, 15);
}
