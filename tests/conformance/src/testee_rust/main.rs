//! The Rust testee: `ticketing-client` does what the runner says (`PROTOCOL.md`).
//!
//! With `--fault NAME` it does one thing wrong, which proves that the suite bites.

#![forbid(unsafe_code)]

mod fault;
mod ops;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use fault::Fault;
use ops::Testee;

const CAPABILITIES: [&str; 7] = [
    "cancel",
    "cancelled_before",
    "deadline",
    "scope",
    "drop",
    "expired",
    "huge_durations",
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1).map(String::as_str)
    };
    assert_eq!(after("--face"), Some("async"), "the one face of Rust");
    let fault = after("--fault").map(Fault::named);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(serve(fault));
}

async fn serve(fault: Option<Fault>) {
    let hello = json!({"hello": {
        "protocol": 1, "language": "rust", "version": env!("CARGO_PKG_VERSION"), "interface": null,
        "faces": ["async"], "capabilities": CAPABILITIES,
    }});
    println!("{hello}");
    let testee = Arc::new(Testee::new(fault));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Value = serde_json::from_str(&line).expect("a command is JSON");
        if command["op"] == "exit" {
            std::process::exit(0);
        }
        testee.begin(command).await;
    }
    testee.close_all().await;
}
