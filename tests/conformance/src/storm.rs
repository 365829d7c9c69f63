//! Race storms: cancels at random moments around the delivery, judged by the ledger.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Map, json};
use tokio::time::sleep;

use crate::peer::Request;
use crate::play::{Play, SOON};

/// Acquires, grants and cancels: whatever comes first, no grant is lost.
pub(crate) async fn storm(play: &mut Play<'_>, rounds: u32) -> Result<()> {
    for round in 0..rounds {
        let name = format!("storm{round}");
        let fields = Map::from_iter([("keys".to_owned(), json!([name]))]);
        let mut call = play.begin(&name, "acquire", fields).await?;
        let request = play.peer.take(Request::is_acquire, SOON).await?;
        let moment = |most: u64| Duration::from_micros(rand::random_range(0..most));
        let cancel_first = rand::random_bool(0.5);
        let target = Map::from_iter([("target".to_owned(), json!(call.id))]);
        if cancel_first {
            play.tell("cancel", target).await?;
            sleep(moment(300)).await;
            play.grant(&request);
        } else {
            play.grant(&request);
            sleep(moment(600)).await;
            play.tell("cancel", target).await?;
        }
        let Some((answer, _)) = call.within(SOON).await? else {
            bail!("round {round}: neither a ticket nor cancelled");
        };
        let error = &answer["error"]["kind"];
        if let Some(token) = answer["ok"]["token"].as_str() {
            play.ledger.reported(token);
            let ticket = Map::from_iter([("ticket".to_owned(), json!(name))]);
            play.tell("release", ticket).await?;
        } else {
            let cancelled = ["cancelled", "Indeterminate", "InsufficientLease"];
            ensure!(
                cancelled.iter().any(|kind| error == kind),
                "round {round}: {answer}"
            );
        }
    }
    Ok(())
}
