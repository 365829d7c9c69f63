//! Leaks: many acquires that are released, dropped and cancelled, then a look at the process.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::peer::Request;
use crate::play::{Play, SOON};

/// What a process has, from its `/proc` entry.
#[derive(Debug, Clone, Copy)]
struct Held {
    kib: u64,
    threads: u64,
    files: usize,
}

impl Held {
    fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            Ok(number.context("a field of /proc")?.parse()?)
        };
        Ok(Held {
            kib: field("VmRSS:")?,
            threads: field("Threads:")?,
            files: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        })
    }
}

/// Memory, threads and files do not grow with the number of calls.
pub(crate) async fn leak(play: &mut Play<'_>, rounds: u32) -> Result<()> {
    // The first ones fill caches and pools.
    rounds_of(play, rounds / 4, 0).await?;
    play.tell("gc", Map::new()).await?;
    let pid = play.testee.pid();
    let before = Held::of(pid)?;
    rounds_of(play, rounds, rounds).await?;
    play.tell("gc", Map::new()).await?;
    let end = Instant::now() + SOON;
    loop {
        let after = Held::of(pid)?;
        let settled = after.kib <= before.kib + before.kib / 5 + 2048
            && after.threads <= before.threads + 2
            && after.files <= before.files + 4;
        if settled {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "{before:?} became {after:?} in {rounds} rounds"
        );
        sleep(Duration::from_millis(50)).await;
    }
}

async fn rounds_of(play: &mut Play<'_>, rounds: u32, first: u32) -> Result<()> {
    let capabilities = play.testee.hello.capabilities.clone();
    let can = |what: &str| capabilities.iter().any(|capability| capability == what);
    for round in first..first + rounds {
        let name = format!("leak{round}");
        let object = |field: &str, value: Value| Map::from_iter([(field.to_owned(), value)]);
        let fields = object("keys", json!([name]));
        let mut call = play.begin(&name, "acquire", fields).await?;
        let request = play.peer.take(Request::is_acquire, SOON).await?;
        let cancels = round % 3 == 0 && can("cancel");
        if cancels {
            let target = object("target", json!(call.id));
            play.tell("cancel", target).await?;
        }
        play.grant(&request);
        let Some((answer, _)) = call.within(SOON).await? else {
            bail!("round {round}: no answer");
        };
        if cancels && answer["error"].is_object() {
            continue; // else the grant was first
        }
        let token = answer["ok"]["token"].as_str().context("no ticket")?;
        play.ledger.reported(token);
        let op = if round % 3 == 1 && can("drop") {
            "drop"
        } else {
            "release"
        };
        play.tell(op, object("ticket", json!(name))).await?;
    }
    Ok(())
}
