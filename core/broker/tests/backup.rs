//! A data directory that went back in time, or was lost.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use camino::{Utf8Path, Utf8PathBuf};
use common::*;
use ticketing_broker::Broker;
use ticketing_broker::config::Config;
use ticketing_wire::Token;

async fn token_of(config: &Config, key: &str) -> Token {
    let broker = Broker::start(config.clone()).await.unwrap();
    let mut peer = Peer::connect(broker.local_addr()).await;
    let token = peer.granted(&acquire(1, 0, 250, &[key])).await;
    drop(peer);
    broker.shutdown().await.unwrap();
    token
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn s3_a_restored_backup_or_an_empty_folder_takes_no_token_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name| -> Utf8PathBuf { Utf8Path::from_path(dir.path()).unwrap().join(name) };
    let mut config = memory_config();
    config.memory = false;
    config.data_dir = folder("data");
    let mut highest = token_of(&config, "before").await;
    copy(&folder("data"), &folder("backup"));
    for key in ["after", "later"] {
        let token = token_of(&config, key).await;
        assert!(token > highest, "{token} after {highest}");
        highest = token;
    }
    for name in ["backup", "nothing"] {
        config.data_dir = folder(name);
        let token = token_of(&config, "restored").await;
        assert!(token > highest, "{name}: {token} after {highest}");
        highest = token;
    }
}
